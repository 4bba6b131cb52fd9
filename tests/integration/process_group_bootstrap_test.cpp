// Groups whose program says which ranks there are, and lends them a store.
#include <ddp/bootstrap.hpp>
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/store/client.hpp"
#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"

namespace ddp {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kNotForEver;
using testing::kPatience;
using testing::RankProcesses;
using testing::run_ranks;
using testing::Shared;
using testing::thrown_by;

constexpr int kRankCount = 3;

// The port of the test's store. Leaves nothing in the environment that says who this rank is.
std::uint16_t port_without_environment() {
  const auto port = static_cast<std::uint16_t>(std::stoi(::getenv("MASTER_PORT")));
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                           "TORCHELASTIC_USE_AGENT_STORE"}) {
    ::unsetenv(name);
  }
  return port;
}

void expect_sums(ProcessGroup& group, int rank) {
  EXPECT_EQ(group.rank(), rank);
  EXPECT_EQ(group.size(), kRankCount);
  EXPECT_EQ(group.local_rank(), rank);
  EXPECT_EQ(group.local_size(), kRankCount);
  std::vector<float> values(1'000, static_cast<float>(rank + 1));
  group.all_reduce({values.data(), values.size()});
  EXPECT_EQ(values, std::vector<float>(1'000, 6.0F));
}

// The four calls that a store must have, over a real store.
class LentStore : public Store {
 public:
  explicit LentStore(std::uint16_t port)
      : client_(store::Client::connect(
            {.host = "127.0.0.1", .port = port, .deadline = std::chrono::steady_clock::now() + kPatience})) {}

  void set(const std::string& key, const std::string& value, TimePoint deadline) override {
    client_.set(key, value, deadline);
  }
  std::string get(const std::string& key, TimePoint deadline) override { return client_.get(key, deadline); }
  std::int64_t add(const std::string& key, std::int64_t delta, TimePoint deadline) override {
    return client_.add(key, delta, deadline);
  }
  void wait(const std::vector<std::string>& keys, TimePoint deadline) override { client_.wait(keys, deadline); }

 private:
  store::Client client_;
};

// A map that the threads of a process share.
class MapStore : public Store {
 public:
  void set(const std::string& key, const std::string& value, TimePoint) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, TimePoint deadline) override {
    std::unique_lock lock(mutex_);
    wait_in(lock, {key}, deadline);
    return values_.at(key);
  }
  std::int64_t add(const std::string& key, std::int64_t delta, TimePoint) override {
    const std::lock_guard lock(mutex_);
    std::string& value = values_[key];
    value = std::to_string((value.empty() ? 0 : std::stoll(value)) + delta);
    changed_.notify_all();
    return std::stoll(value);
  }
  void wait(const std::vector<std::string>& keys, TimePoint deadline) override {
    std::unique_lock lock(mutex_);
    wait_in(lock, keys, deadline);
  }
  void remove(const std::string& key, TimePoint) override {
    const std::lock_guard lock(mutex_);
    values_.erase(key);
  }

 private:
  void wait_in(std::unique_lock<std::mutex>& lock, const std::vector<std::string>& keys, TimePoint deadline) {
    const auto all_are_here = [&] {
      for (const std::string& key : keys) {
        if (values_.count(key) == 0) return false;
      }
      return true;
    };
    if (!changed_.wait_until(lock, deadline, all_are_here)) throw TimeoutError("no such key");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

TEST(Bootstrap, ByAddressNeedsNothingOfTheEnvironment) {
  Shared<std::array<std::atomic<std::uint64_t>, kRankCount>> terms;
  run_ranks(kRankCount, [&](int rank) {
    const std::uint16_t port = port_without_environment();
    const BootstrapOptions place{
        .rank = rank, .size = kRankCount, .store_host = "127.0.0.1", .store_port = port, .name = "by address"};
    for (int i = 0; i < 2; ++i) {
      auto group = init_process_group(place, {.timeout = kNotForEver});
      EXPECT_EQ(testing::connections_to(port), 0U) << "the backend cpu needs the store to meet only";
      expect_sums(group, rank);
      (*terms)[static_cast<std::size_t>(rank)] = group.round().term_random;
      group.barrier();
      EXPECT_EQ((*terms)[0], group.round().term_random);
    }
  });
}

TEST(Bootstrap, ByAnObjectNeedsFourCallsOnly) {
  run_ranks(kRankCount, [](int rank) {
    const RoundId round{1, 2, 3};
    const BootstrapOptions place{.rank = rank,
                                 .size = kRankCount,
                                 .store = std::make_shared<LentStore>(port_without_environment()),
                                 .round = round};
    auto group = init_process_group(place, {.timeout = kNotForEver});
    EXPECT_EQ(group.round(), round);
    expect_sums(group, rank);
    auto part = group.split(rank % 2);
    part.barrier();
  });
}

TEST(Bootstrap, ByAnObjectNamesTheRankThatNeverComes) {
  const auto body = [](int rank) {
    const BootstrapOptions place{
        .rank = rank, .size = kRankCount, .store = std::make_shared<LentStore>(port_without_environment())};
    const auto error = thrown_by<TimeoutError>([&] { init_process_group(place, {.timeout = milliseconds(2'000)}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(1));
  };
  RankProcesses ranks(kRankCount, body, {1});
  ranks.expect_success(0);
  ranks.expect_success(2);
}

TEST(Bootstrap, ByAnObjectTellsAllWhyTheMeetingFailed) {
  run_ranks(kRankCount, [](int rank) {
    const BootstrapOptions place{.rank = rank == 2 ? 1 : rank,
                                 .size = kRankCount,
                                 .store = std::make_shared<LentStore>(port_without_environment())};
    const auto error = thrown_by<Error>([&] { init_process_group(place, {.timeout = kNotForEver}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("two processes say that they are rank 1: pids "));
  });
}

// Runs body(rank) on a thread for each rank, in a process of its own.
void run_threads(const std::function<void(int rank, const std::shared_ptr<MapStore>& store)>& body) {
  run_ranks(1, [&](int) {
    port_without_environment();
    const auto store = std::make_shared<MapStore>();
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRankCount; ++rank) ranks.emplace_back([&, rank] { body(rank, store); });
    for (std::thread& rank : ranks) rank.join();
  });
}

TEST(Bootstrap, RanksMayBeThreadsOfOneProcess) {
  run_threads([](int rank, const std::shared_ptr<MapStore>& store) {
    const BootstrapOptions place{.rank = rank, .size = kRankCount, .store = store};
    for (int i = 0; i < 2; ++i) {
      auto group = init_process_group(place, {.timeout = kNotForEver});
      expect_sums(group, rank);
      auto part = group.split(rank == 0 ? 0 : 1);
      std::int64_t value = rank;
      part.all_reduce({&value, 1});
      EXPECT_EQ(value, rank == 0 ? 0 : 3);
      std::int64_t passed_on = 0;
      if (rank > 0) group.receive({&passed_on, 1}, rank - 1);
      EXPECT_EQ(passed_on, rank);
      ++passed_on;
      if (rank < kRankCount - 1) group.send({&passed_on, 1}, rank + 1);
      group.barrier();
    }
  });
}

TEST(Bootstrap, AThreadThatGivesUpIsNamedByTheOthers) {
  run_threads([](int rank, const std::shared_ptr<MapStore>& store) {
    auto group = init_process_group({.rank = rank, .size = kRankCount, .store = store}, {.timeout = kNotForEver});
    if (rank == 1) return group.abort("this rank has enough");
    const auto error = thrown_by<RankFailure>([&] { group.barrier(); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(1));
  });
}

TEST(Bootstrap, AGroupOfOneNeedsNoStore) {
  run_ranks(1, [](int) {
    port_without_environment();
    auto group = init_process_group(BootstrapOptions{}, {.timeout = kNotForEver});
    EXPECT_EQ(group.size(), 1);
    group.barrier();
  });
}

}  // namespace
}  // namespace ddp
