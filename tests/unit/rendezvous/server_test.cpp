#include "rendezvous/store/server.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <mutex>
#include <thread>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "rendezvous/port/port.hpp"
#include "rendezvous/store/client.hpp"
#include "tests/unit/rendezvous/golden.hpp"
#include "tests/unit/rendezvous/loopback.hpp"

namespace ddp::store {
namespace {

using namespace std::chrono_literals;
using namespace std::string_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr uid_t kNobody = 65534;

// A server and its port, on an event loop in a thread of its own.
class Serving {
 public:
  explicit Serving(ServerOptions options = {}) {
    options.warn = [this](const base::Warning& warning) {
      const std::lock_guard lock(mutex_);
      warnings_.push_back(warning.text);
    };
    server_ = std::make_unique<Server>(io_, std::move(options));
    // Whatever the first byte is: the server looks at it too.
    const auto adopt = [this](base::UniqueFd socket, const sockaddr_storage& peer) {
      server_->adopt(std::move(socket), peer);
    };
    port_ = std::make_unique<port::Port>(io_, port::PortOptions{.addresses = {"127.0.0.1"}},
                                         port::Handlers{.store = adopt, .http = adopt, .tls = adopt});
    thread_ = std::thread([this] { io_.run(); });  // ends when neither has any more work
  }
  ~Serving() {
    on_loop([this] {
      port_->stop();
      server_->stop();
    });
    thread_.join();
  }

  std::uint16_t port() const { return port_->number(); }
  Client client() { return Client::connect({.host = "127.0.0.1", .port = port(), .deadline = patience()}); }
  RawSocket raw() {  // validated
    auto socket = RawSocket::connected(port());
    socket.send(kGoldenValidate);
    return socket;
  }
  void begin_round() {
    on_loop([this] {
      server_->begin_round({});
      port_->drop_pending();
    });
  }
  void allow(const std::vector<std::string>& blocks) {
    on_loop([&] { server_->allow(blocks); });
  }
  std::vector<std::string> warnings() {
    on_loop([] {});  // what the loop had to do before is done
    const std::lock_guard lock(mutex_);
    return warnings_;
  }

 private:
  template <class Work>
  void on_loop(Work work) {
    std::promise<void> done;
    boost::asio::post(io_, [&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }

  boost::asio::io_context io_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<port::Port> port_;
  std::mutex mutex_;
  std::vector<std::string> warnings_;
  std::thread thread_;
};

// Sends commands and waits until the server has taken them in, which the answer to the last one says.
void send_and_sync(RawSocket& socket, const std::string& commands) {
  socket.send(commands + encode(command::Ping{77}));
  EXPECT_EQ(socket.receive(4), encode_nonce(77));
}

TEST(StoreServer, AnswersASessionAsPyTorchDoes) {
  Serving serving;
  auto socket = serving.raw();
  for (const auto& exchange : golden_session()) {
    SCOPED_TRACE(exchange.what);
    socket.send(exchange.sent);
    EXPECT_EQ(socket.receive(exchange.answered.size()), exchange.answered);
  }
}

// What torch 2.2.2 sent, recorded: it knows no PING and goes straight on after VALIDATE.
TEST(StoreServer, AnswersASessionOfTorch22) {
  Serving serving;
  auto socket = RawSocket::connected(serving.port());
  socket.send(
      bytes_of("00 ce f7 85 3c 01 02 00 00 00 00 00 00 00 2f 6b 01 00 00 00 00 00 00 00 76 "
               "06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b"));
  EXPECT_EQ(socket.receive(1), bytes_of("00"));
  socket.send(bytes_of("03 02 00 00 00 00 00 00 00 2f 6b"));
  EXPECT_EQ(socket.receive(9), bytes_of("01 00 00 00 00 00 00 00 76"));
  socket.send(bytes_of("04 02 00 00 00 00 00 00 00 2f 6e 03 00 00 00 00 00 00 00"));
  EXPECT_EQ(socket.receive(8), bytes_of("03 00 00 00 00 00 00 00"));
  socket.send(bytes_of("07"));
  EXPECT_EQ(socket.receive(8), bytes_of("02 00 00 00 00 00 00 00"));
}

TEST(StoreServer, AnswersAPipelinedSessionHoweverItIsCut) {
  std::string sent = kGoldenValidate, answered;
  for (const auto& exchange : golden_session()) {
    sent += exchange.sent;
    answered += exchange.answered;
  }
  for (std::size_t cut = 0; cut < sent.size(); ++cut) {
    Serving serving;
    auto socket = RawSocket::connected(serving.port());
    socket.send(sent.substr(0, cut));
    socket.send(sent.substr(cut));
    ASSERT_EQ(socket.receive(answered.size()), answered) << "cut at " << cut;
  }
}

TEST(StoreServer, EveryClientCallWorks) {
  Serving serving;
  auto client = serving.client();
  client.set("k", "v\0w"s, patience());
  EXPECT_EQ(client.get("k", patience()), "v\0w"s);
  EXPECT_EQ(client.add("n", 5, patience()), 5);
  EXPECT_EQ(client.add("n", -7, patience()), -2);
  EXPECT_EQ(client.get("n", patience()), "-2");
  EXPECT_TRUE(client.check({"k", "n"}, patience()));
  EXPECT_FALSE(client.check({"k", "x"}, patience()));
  client.wait({"n", "k"}, patience());
  EXPECT_EQ(client.compare_set("k", "other", "new", patience()), "v\0w"s);
  EXPECT_EQ(client.compare_set("c", "", "new", patience()), "new");
  client.append("c", "er", patience());
  EXPECT_EQ(client.get("c", patience()), "newer");
  EXPECT_EQ(client.key_count(patience()), 3);
  EXPECT_TRUE(client.remove("c", patience()));
  EXPECT_FALSE(client.remove("c", patience()));
  client.multi_set({{"a", "1"}, {"b", ""}}, patience());
  EXPECT_THAT(client.multi_get({"b", "a", "b"}, patience()), ElementsAre("", "1", ""));
  client.queue_push("q", "first", patience());
  client.queue_push("q", "second", patience());
  EXPECT_EQ(client.queue_length("q", patience()), 2);
  EXPECT_EQ(client.queue_pop("q", patience()), "first");
  EXPECT_EQ(client.queue_pop("q", patience()), "second");
  EXPECT_THROW(client.queue_pop("q", std::chrono::steady_clock::now() + 20ms), TimeoutError);
  EXPECT_EQ(client.queue_length("q", patience()), 0);
  client.set("q", "no queue", patience());
  EXPECT_EQ(client.queue_pop("q", patience()), std::nullopt);  // the wait was over at once
  EXPECT_THAT(client.list_keys(patience()), UnorderedElementsAre("k", "n", "a", "b", "q"));
  EXPECT_THROW(client.barrier("all", 2, std::chrono::steady_clock::now() + 20ms), TimeoutError);
  client.barrier("all", 2, patience());  // the one before has come, and given up waiting only
  client.barrier("all", 2, patience());  // open for good
  const std::string longest(kValueBytesMax, 'v');
  client.set(std::string(kKeyBytesMax, 'k'), longest, patience());
  EXPECT_TRUE(client.get(std::string(kKeyBytesMax, 'k'), patience()) == longest);
  EXPECT_THAT(serving.warnings(), IsEmpty());
}

TEST(StoreServer, MalformedAllowListIsRefused) {
  boost::asio::io_context io;
  EXPECT_THROW(Server(io, {.allow = {"localhost"}}), InvalidArgument);
  Server server(io, {});
  EXPECT_THROW(server.allow({"10.0.0.0/8", "localhost"}), InvalidArgument);
}

TEST(StoreServer, EightClientsAtOnceMeet) {
  constexpr int kClients = 8, kAdds = 200;
  Serving serving;
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&serving, i] {
      auto client = serving.client();
      for (int n = 0; n < kAdds; ++n) client.add("sum", 1, patience());
      client.set("done/" + std::to_string(i), std::to_string(i), patience());
      std::vector<std::string> all;
      for (int k = 0; k < kClients; ++k) all.push_back("done/" + std::to_string(k));
      client.wait(all, patience());
      client.barrier("everybody", kClients, patience());
      EXPECT_EQ(client.get("sum", patience()), std::to_string(kClients * kAdds));
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(StoreServer, WaitersAreWokenByAnotherClient) {
  Serving serving;
  auto first = serving.raw();
  auto second = serving.raw();
  auto gone = serving.raw();
  send_and_sync(first, encode(command::Wait{{"k"}}));  // the wait is not answered before the ping
  send_and_sync(second, encode(command::Wait{{"k", "j"}}));
  send_and_sync(gone, encode(command::Wait{{"k"}}));
  gone.close();
  auto client = serving.client();
  client.set("k", "", patience());
  EXPECT_EQ(first.receive(1), std::string(1, kWaitFulfilled));
  send_and_sync(second, "");
  client.set("j", "", patience());
  EXPECT_EQ(second.receive(1), std::string(1, kWaitFulfilled));
}

TEST(StoreServer, WaitTimesOutAndTheClientGoesOn) {
  Serving serving;
  auto client = serving.client();
  try {
    client.wait({"k", "never"}, std::chrono::steady_clock::now() + 20ms);
    ADD_FAILURE() << "found";
  } catch (const TimeoutError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("\"k\", \"never\""), HasSubstr(" ms")));
  }
  EXPECT_THROW(client.get("never", std::chrono::steady_clock::now() + 20ms), TimeoutError);
  client.set("never", "now", patience());
  EXPECT_EQ(client.get("never", patience()), "now");
}

TEST(StoreServer, NewRoundClosesConnectionsAndDropsKeysButKeepsThePort) {
  Serving serving;
  const auto port = serving.port();
  auto client = serving.client();
  client.set("k", "old", patience());
  auto waiter = serving.raw();
  send_and_sync(waiter, encode(command::Wait{{"j"}}));
  serving.begin_round();
  EXPECT_TRUE(waiter.is_hung_up());
  EXPECT_THROW(client.key_count(patience()), StoreError);
  EXPECT_EQ(serving.port(), port);
  auto next = serving.client();
  EXPECT_EQ(next.key_count(patience()), 0);
  next.set("j", "new", patience());
  EXPECT_EQ(next.get("j", patience()), "new");
}

TEST(StoreServer, HalfACommandHoldsUpNobodyAndHasNoEffect) {
  Serving serving;
  const std::string set = encode(command::MultiSet{{{"a", "1"}, {"b", "2"}}});
  auto slow = serving.raw();
  send_and_sync(slow, "");
  slow.send(set.substr(0, set.size() - 1));
  auto client = serving.client();
  EXPECT_EQ(client.key_count(patience()), 0);
  slow.send(set.substr(set.size() - 1));
  EXPECT_EQ(client.get("b", patience()), "2");
  slow.send(set.substr(0, set.size() - 1));
  slow.close();
  EXPECT_EQ(client.key_count(patience()), 2);
}

TEST(StoreServer, MalformedStreamsAreClosedWithAReason) {
  const struct {
    const char* what;
    std::string bytes;
    const char* want;
  } cases[] = {
      {"HTTP", "GET / HTTP/1.1\r\nHost: node0\r\n\r\n", "like HTTP"},
      {"TLS", bytes_of("16 03 01 02 00 01 00 01 fc 03 03"), "like TLS"},
      {"wrong magic", bytes_of("00 01 02 03 04"), "magic"},
      {"unknown command", kGoldenValidate + "\x13", "command 19 is unknown"},
      {"long key", kGoldenValidate + "\x03" + encode_integer(kKeyBytesMax + 1), "GET: a key's length"},
      {"long value", kGoldenValidate + "\x01" + encode_value("k") + encode_integer(1001), "SET: a value's length"},
      {"long list", kGoldenValidate + "\x06" + encode_integer(kListCountMax + 1), "WAIT: the number of keys"},
      {"add to text", kGoldenValidate + encode(command::Set{"k", "text"}) + encode(command::Add{"k", 1}), "no number"},
      {"full",
       kGoldenValidate + encode(command::MultiSet{{{"k", std::string(1000, 'v')}, {"j", std::string(1000, 'v')}}}),
       "the store is full"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    Serving serving({.value_bytes_max = 1000, .total_bytes_max = 4000});
    for (int i = 0; i < 2; ++i) {
      auto socket = RawSocket::connected(serving.port());
      socket.send(c.bytes);
      EXPECT_TRUE(socket.is_hung_up());
    }
    EXPECT_THAT(serving.warnings(),
                AllOf(SizeIs(2), Each(AllOf(HasSubstr("closed the connection from 127.0.0.1: "), HasSubstr(c.want)))));
    EXPECT_EQ(serving.client().add("n", 1, patience()), 1);
  }
}

TEST(StoreServer, ConnectionsBeyondTheLimitAreClosed) {
  Serving serving({.connection_count_max = 2});
  auto first = serving.client();
  auto second = serving.raw();
  send_and_sync(second, "");
  auto third = serving.raw();
  EXPECT_TRUE(third.is_hung_up());
  EXPECT_THAT(serving.warnings(), ElementsAre(HasSubstr("it has 2 already")));
  second.close();
  auto fourth = serving.client();  // tries until the place is free
  EXPECT_EQ(fourth.add("n", 1, patience()), 1);
  EXPECT_EQ(first.add("n", 1, patience()), 2);
}

// Each command is as long as its answer: the reader who never reads is not read from either.
TEST(StoreServer, ClientThatReadsNoAnswersIsNotReadFrom) {
  constexpr std::size_t kCommands = 64, kValue = 1u << 19;
  Serving serving;
  auto socket = serving.raw();
  std::string commands;
  for (std::size_t i = 0; i < kCommands; ++i) {
    commands += encode(command::CompareSet{"k", std::string(kValue, static_cast<char>('a' + i % 26)), ""});
  }
  std::size_t sent = 0;
  pollfd entry{socket.fd(), POLLOUT, 0};
  while (sent < commands.size() && ::poll(&entry, 1, 500) > 0) {  // a slow machine only ends this early
    const auto count = ::send(socket.fd(), &commands[sent], commands.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) sent += static_cast<std::size_t>(count);
  }
  EXPECT_LT(sent, commands.size() / 2);  // the rest waits at the sender
  EXPECT_EQ(serving.client().add("n", 1, patience()), 1);
  std::thread rest([&] { socket.send(commands.substr(sent)); });
  for (std::size_t i = 0; i < kCommands; ++i) {
    const auto answer = socket.receive(8 + kValue);
    ASSERT_EQ(answer.size(), 8 + kValue);
    ASSERT_EQ(answer.back(), static_cast<char>('a' + i % 26));
  }
  rest.join();
}

TEST(StoreServer, ConnectionThatHoldsTheMostIsClosedWhenMemoryIsFull) {
  Serving serving({.value_bytes_max = 200'000, .total_bytes_max = 1'000'000, .memory_option = "--the-option"});
  auto honest = serving.client();
  honest.set("k", std::string(200'000, 'v'), patience());
  auto waiter = serving.raw();
  send_and_sync(waiter, encode(command::Wait{{"woken"}}));
  const std::string set = encode(command::CompareSet{"a", "", std::string(190'000, 'a')});
  std::vector<RawSocket> attackers;
  for (std::size_t i = 0; i < 6; ++i) {
    attackers.push_back(serving.raw());
    send_and_sync(attackers.back(), "");
    attackers.back().send(set.substr(0, set.size() - i - 1));  // the first one holds the most
    EXPECT_EQ(honest.get("k", patience()), std::string(200'000, 'v'));
  }
  EXPECT_TRUE(attackers[0].is_hung_up());
  honest.set("woken", "", patience());
  EXPECT_EQ(waiter.receive(1), std::string(1, kWaitFulfilled));
  for (const auto& warning : serving.warnings()) {
    EXPECT_THAT(warning,
                AllOf(HasSubstr("closed the connection from 127.0.0.1: the store's memory is full (976 KiB), and this "
                                "connection holds the most: a command of 18"),
                      HasSubstr("; --the-option=MIB allows more")));
  }
  EXPECT_THAT(serving.warnings(), Not(IsEmpty()));
}

// They refer to values of the old store.
TEST(StoreServer, NewRoundAndEndDropAnswersThatNobodyHasRead) {
  Serving serving;
  std::vector<RawSocket> readers;
  for (int round = 0; round < 2; ++round) {
    auto client = serving.client();
    client.set("k", std::string(kValueBytesMax, 'v'), patience());
    client.key_count(patience());  // it is stored
    for (int i = 0; i < 4; ++i) {
      readers.push_back(serving.raw());
      readers.back().send(encode(command::Get{"k"}));
      EXPECT_EQ(readers.back().receive(8), encode_integer(kValueBytesMax));
    }
    client.remove("k", patience());
    if (round == 0) serving.begin_round();
  }
}

TEST(StoreServer, DescriptorsAreClosedOnExec) {
  Serving serving;
  auto client = serving.client();
  for (int fd = 3; fd < 256; ++fd) {
    const int flags = ::fcntl(fd, F_GETFD);
    if (flags < 0) continue;
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) continue;  // not a socket of ours
    EXPECT_TRUE(flags & FD_CLOEXEC) << "descriptor " << fd;
  }
}

// A process of another user that connects to the port it reads from `port`, twice, and exits with 0 if it was turned
// away both times.
pid_t fork_stranger(int port_pipe) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  std::uint16_t port = 0;
  if (::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(2);
  if (::read(port_pipe, &port, sizeof port) != sizeof port) ::_exit(3);
  for (int i = 0; i < 2; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    const auto address = loopback(port);
    const timeval limit{kPatience.count(), 0};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) ::_exit(4);
    const char hello[] = {0, '\xce', '\xf7', '\x85', '\x3c', 13, 1, 2, 3, 4};
    (void)!::send(fd, hello, sizeof hello, MSG_NOSIGNAL);
    char byte;
    const auto count = ::recv(fd, &byte, 1, 0);
    if (count > 0) ::_exit(5);
    if (count < 0 && errno != ECONNRESET) ::_exit(6);
  }
  ::_exit(0);
}

int status_of_stranger(const ServerOptions& options, const std::vector<std::string>& allowed_later,
                       std::vector<std::string>& warnings) {
  int ends[2];
  require(::pipe2(ends, O_CLOEXEC) == 0, "pipe2");
  const base::UniqueFd read_end(ends[0]), write_end(ends[1]);
  const pid_t child = fork_stranger(read_end.get());  // before the server's thread begins
  Serving serving(options);
  serving.allow(allowed_later);
  const auto port = serving.port();
  require(::write(write_end.get(), &port, sizeof port) == sizeof port, "write");
  int status = 0;
  require(::waitpid(child, &status, 0) == child, "waitpid");
  warnings = serving.warnings();
  EXPECT_EQ(serving.client().add("n", 1, patience()), 1);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(StoreServer, OtherUsersOfThisHostAreRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can act for another user";
  std::vector<std::string> warnings;
  EXPECT_EQ(status_of_stranger({}, {}, warnings), 0);
  EXPECT_THAT(warnings, AllOf(Not(IsEmpty()), Each(AllOf(HasSubstr("refused a connection of uid 65534 from this host "
                                                                   "(127.0.0.1)"),
                                                         HasSubstr("--store-allow=any")))));
  EXPECT_EQ(status_of_stranger({.allow = {"any"}}, {}, warnings), 5);  // it was answered
  EXPECT_THAT(warnings, IsEmpty());
  EXPECT_EQ(status_of_stranger({}, {"any"}, warnings), 5);
  EXPECT_THAT(warnings, IsEmpty());
}

}  // namespace
}  // namespace ddp::store
