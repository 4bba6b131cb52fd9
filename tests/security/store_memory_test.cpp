// Clients that make the store hold as much as they can. Its memory stays within --store-memory, those who hold the most
// are closed, and what others stored stays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "rendezvous/store/client.hpp"
#include "rendezvous/store/codec.hpp"
#include "tests/integration/job.hpp"
#include "tests/sanitized.hpp"
#include "tests/unit/rendezvous/loopback.hpp"

namespace ddp::test {
namespace {

using store::RawSocket;
using ::testing::HasSubstr;

constexpr std::size_t kMib = 1u << 20;
constexpr std::size_t kSlackMib = 64;  // of the program, and of what the allocator keeps
constexpr int kListKeys = 131'072;     // the longest list that a command may have

RawSocket attacker_of(std::uint16_t port) {
  auto socket = RawSocket::unconnected();
  const int bytes = 16 << 10;  // so that what it does not read stays in the server
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  socket.connect(port);
  socket.send(store::encode(store::command::Validate{}));
  return socket;
}

// A list of three long values, of which the last lacks a byte.
std::string unfinished_command() {
  std::string command = store::encode(store::command::MultiSet{
      {{"a", std::string(5 * kMib, 'a')}, {"b", std::string(5 * kMib, 'b')}, {"c", std::string(5 * kMib, 'c')}}});
  command.pop_back();
  return command;
}

// `ddp-rendezvous store`, watched from outside, with an honest client that has stored something.
class StoreUnderAttack {
 public:
  explicit StoreUnderAttack(std::size_t memory_mib)
      : memory_mib_(memory_mib),
        program_({"store", "--port", "0", "--host", "127.0.0.1", "--store-memory", std::to_string(memory_mib)},
                 {.environment = {}, .program = "ddp-rendezvous"}),
        port_(static_cast<std::uint16_t>(program_.number_after("listens on port "))),
        honest_(client()) {
    honest_.set("honest", kept_, store::patience());
  }

  std::uint16_t port() const { return port_; }
  store::Client& honest() { return honest_; }
  store::Client client() {
    return store::Client::connect({.host = "127.0.0.1", .port = port_, .deadline = store::patience()});
  }
  RawSocket attacker() const { return attacker_of(port_); }

  // The honest client's connection is still there, what it stored too, and a new client gets in.
  void expect_honest_clients_go_on() {
    EXPECT_TRUE(honest_.get("honest", store::patience()) == kept_);
    const auto sum = honest_.add("sum", 1, store::patience());
    auto another = client();
    EXPECT_EQ(another.add("sum", 1, store::patience()), sum + 1);
    EXPECT_TRUE(another.get("honest", store::patience()) == kept_);
  }

  // VmRSS: what the program holds now; VmHWM: the most that it ever held.
  std::size_t mib(const std::string& what) const {
    std::ifstream status("/proc/" + std::to_string(program_.pid()) + "/status");
    std::size_t kib = 0;
    for (std::string word; status >> word;)
      if (word == what + ":" && status >> kib) return kib >> 10;
    return 0;
  }
  bool comes_down_to(std::size_t mib_max) const {
    const auto deadline = store::patience();
    while (mib("VmRSS") > mib_max && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return mib("VmRSS") <= mib_max;
  }
  void expect_peak_within_memory() const {
    if (kIsSanitized) return;  // a sanitizer has memory of its own
    EXPECT_LT(mib("VmHWM"), memory_mib_ + kSlackMib);
  }

  bool says(const std::string& text) { return program_.prints(text); }

 private:
  std::size_t memory_mib_;
  std::string kept_ = std::string(kMib, 'h');
  Job program_;
  std::uint16_t port_;
  store::Client honest_;
};

bool is_readable(const RawSocket& socket) {
  pollfd entry{socket.fd(), POLLIN, 0};
  return ::poll(&entry, 1, static_cast<int>(store::kPatience.count() * 1000)) > 0;
}

TEST(StoreMemoryAttack, LongCommandsOfWhichThePartsComeSlowlyAreBounded) {
  StoreUnderAttack store(128);
  const std::string command = unfinished_command();
  std::vector<RawSocket> attackers;
  for (int i = 0; i < 40; ++i) {
    attackers.push_back(store.attacker());
    attackers.back().send(command);
    if (i % 10 == 9) store.expect_honest_clients_go_on();
  }
  EXPECT_TRUE(
      store.says("the store closed the connection from 127.0.0.1: the store's memory is full "
                 "(128 MiB), and this connection holds the most: a command of "));
  EXPECT_TRUE(store.says("--store-memory=MIB allows more"));
  store.expect_honest_clients_go_on();
  store.expect_peak_within_memory();
}

TEST(StoreMemoryAttack, StoreOfAnAgentIsBoundedToo) {
  Job job({"--no-python", "--rdzv-conf=store_memory=64", "sh", "-c", "echo the port is $MASTER_PORT; " + kStay});
  const auto port = static_cast<std::uint16_t>(job.number_after("the port is "));
  auto honest = store::Client::connect({.host = "127.0.0.1", .port = port, .deadline = store::patience()});
  honest.set("k", "v", store::patience());
  std::vector<RawSocket> attackers;
  for (int i = 0; i < 8; ++i) {
    attackers.push_back(attacker_of(port));
    attackers.back().send(unfinished_command());
  }
  EXPECT_TRUE(job.prints("the store's memory is full (64 MiB), and this connection holds the most: a command of "));
  EXPECT_TRUE(job.prints("; --rdzv-conf=store_memory=MIB allows more"));
  EXPECT_EQ(honest.get("k", store::patience()), "v");
}

TEST(StoreMemoryAttack, OneConnectionHasOnlyItsShare) {
  StoreUnderAttack store(256);
  std::vector<store::KeyValue> entries(5, {"k", std::string(8 * kMib - 1, 'v')});
  auto attacker = store.attacker();
  attacker.send(store::encode(store::command::MultiSet{entries}));
  EXPECT_TRUE(attacker.is_hung_up());
  EXPECT_TRUE(store.says("it holds more than its share of the store's memory, 32 MiB: a command of 3"));
  store.expect_honest_clients_go_on();
}

TEST(StoreMemoryAttack, AnswersThatNobodyReadsAreBounded) {
  StoreUnderAttack store(128);
  std::vector<store::KeyValue> entries;
  for (int i = 0; i < 40'000; ++i) entries.push_back({std::string(200, 'k') + std::to_string(i), ""});
  store.honest().multi_set(entries, store::patience());
  std::vector<RawSocket> attackers;
  for (int i = 0; i < 30; ++i) {  // of 8 MiB each
    attackers.push_back(store.attacker());
    attackers.back().send(store::encode(store::command::ListKeys{}));
    is_readable(attackers.back());
  }
  EXPECT_TRUE(store.says("memory is full"));  // which connection is closed first depends on their pace
  store.expect_honest_clients_go_on();
  EXPECT_EQ(store.honest().key_count(store::patience()), 40'002);
  store.expect_peak_within_memory();
}

TEST(StoreMemoryAttack, OldValuesInAnswersThatNobodyReadsAreBounded) {
  StoreUnderAttack store(128);
  std::vector<RawSocket> attackers;
  for (int i = 0; i < 60; ++i) {
    store.honest().set("k", std::string(4 * kMib, static_cast<char>('a' + i % 26)), store::patience());
    store.honest().key_count(store::patience());
    attackers.push_back(store.attacker());
    attackers.back().send(store::encode(store::command::Get{"k"}));
    is_readable(attackers.back());
  }
  EXPECT_TRUE(store.says("memory is full"));  // which connection is closed first depends on their pace
  store.expect_honest_clients_go_on();
  EXPECT_EQ(store.honest().get("k", store::patience()), std::string(4 * kMib, static_cast<char>('a' + 59 % 26)));
  store.expect_peak_within_memory();
}

std::string wait_for_many(int connection, int count) {
  store::command::Wait wait;
  for (int n = 0; n < count; ++n) wait.keys.push_back("wait/" + std::to_string(connection) + "/" + std::to_string(n));
  return store::encode(wait);
}

TEST(StoreMemoryAttack, WaitsForManyKeysAreBounded) {
  StoreUnderAttack store(128);
  auto waiter = store.attacker();
  waiter.send(store::encode(store::command::Wait{{"honest/last"}}));
  std::vector<RawSocket> attackers;
  for (int i = 0; i < 20; ++i) {
    attackers.push_back(store.attacker());
    attackers.back().send(wait_for_many(i, kListKeys / 2));
  }
  // Either the one that asks is closed, or one that holds more.
  EXPECT_TRUE(store.says("the store closed the connection from 127.0.0.1: the store"));
  EXPECT_TRUE(store.says("--store-memory=MIB allows more"));
  store.expect_honest_clients_go_on();
  store.honest().set("honest/last", "", store::patience());
  EXPECT_EQ(waiter.receive(1), std::string(1, store::kWaitFulfilled));
  store.expect_peak_within_memory();
}

TEST(StoreMemoryAttack, WaitsForManyKeysGiveBackWhatTheyHeld) {
  constexpr std::size_t kAttackers = kIsSanitized ? 2 : 20;  // of more than 10 MiB each
  StoreUnderAttack store(1024);
  const auto before = store.mib("VmRSS");
  const auto nonce = store::encode_nonce(7);
  std::vector<RawSocket> attackers;
  for (std::size_t i = 0; i < kAttackers; ++i) {
    attackers.push_back(store.attacker());
    attackers.back().send(wait_for_many(static_cast<int>(i), kListKeys) + store::encode(store::command::Ping{7}));
    EXPECT_EQ(attackers.back().receive(4), nonce);
  }
  EXPECT_GT(store.mib("VmRSS"), before + kAttackers * 10);  // so that there is something to give back
  store.honest().set("between", std::string(100, 'b'), store::patience());
  for (std::size_t i = 0; i < kAttackers; ++i) {
    if (i % 2 == 0) {
      attackers[i].close();
    } else {
      attackers[i].send(store::encode(store::command::CancelWait{}));
    }
  }
  EXPECT_TRUE(kIsSanitized || store.comes_down_to(before + kSlackMib))
      << store.mib("VmRSS") << " MiB, before " << before;
  store.expect_honest_clients_go_on();
}

// All ranks of a large job read what one of them has stored, and are slow about it.
TEST(StoreMemoryAttack, ThousandsOfReadersShareOneValue) {
  constexpr std::size_t kReadersWanted = kIsSanitized ? 256 : 4096;
  rlimit descriptors{};
  ::getrlimit(RLIMIT_NOFILE, &descriptors);
  descriptors.rlim_cur = descriptors.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &descriptors);
  const auto readers_max = static_cast<std::size_t>(descriptors.rlim_max) - 64;
  if (readers_max < kReadersWanted) GTEST_SKIP() << "needs " << kReadersWanted << " descriptors; see `ulimit -Hn`";

  StoreUnderAttack store(64);
  const std::string value(kMib / 2, 'v');
  store.honest().set("value", value, store::patience());
  store.honest().key_count(store::patience());  // answered once the value is stored: a set has no answer
  std::vector<RawSocket> readers;
  for (std::size_t i = 0; i < kReadersWanted; ++i) {
    readers.push_back(store.attacker());
    readers.back().send(store::encode(store::command::Get{"value"}));
  }
  for (auto& reader : readers) ASSERT_TRUE(is_readable(reader));
  store.expect_peak_within_memory();
  const std::string want = store::encode_value(value);
  for (auto& reader : readers) ASSERT_TRUE(reader.receive(want.size()) == want);
  store.expect_honest_clients_go_on();
  store.expect_peak_within_memory();
}

}  // namespace
}  // namespace ddp::test
