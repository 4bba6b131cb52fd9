// Sends, receives and coalesced calls between ranks of one host and of several, and what becomes of them when a rank
// fails.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/pair_checks.hpp"
#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"
#include "tests/multihost/multihost.hpp"

namespace ddp {
namespace {

using std::chrono::milliseconds;
using test::Hosts;
using ::testing::AllOf;
using testing::Buffer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kNotForEver;
using ::testing::Not;
using testing::RankProcesses;
using testing::run_ranks;
using testing::Shared;
using testing::thrown_by;
using testing::wait_until;

const std::vector<int> kTwoHosts{0, 0, 1, 1};

class PairsOverHosts : public test::Multihost {
 protected:
  void SetUp() override { hosts_ = make_hosts({}); }

  Hosts* hosts_ = nullptr;
};

template <class T>
void check_messages(Hosts& hosts, const std::vector<int>& host_of, const std::string& store = "") {
  run_ranks({hosts, host_of, store}, [](int) {
    auto group = init_process_group({.timeout = std::chrono::seconds(60)});
    testing::check_pairs<T, Buffer>(group);
  });
}

TEST_F(PairsOverHosts, MessagesArriveBitByBit) {
  if (hosts_ == nullptr) return;
  check_messages<float>(*hosts_, {0, 1});
  check_messages<tensor::Bfloat16>(*hosts_, kTwoHosts);
  check_messages<std::uint8_t>(*hosts_, {0, 1, 0});
}

TEST_F(PairsOverHosts, MessagesTravelByIpv6) {
  if (hosts_ != nullptr) check_messages<double>(*hosts_, {0, 1}, Hosts::ipv6(0));
}

TEST_F(PairsOverHosts, ManyMessagesKeepTheirOrder) {
  if (hosts_ == nullptr) return;
  run_ranks({*hosts_, {0, 1}, ""}, [](int) {
    auto group = init_process_group({.timeout = kNotForEver});
    testing::check_in_turn(group, 2'000);
  });
}

TEST_F(PairsOverHosts, TagsTellMessagesApart) {
  if (hosts_ == nullptr) return;
  for (const auto& host_of : {std::vector{0, 1}, {0, 0, 1}}) {
    run_ranks({*hosts_, host_of, ""}, [](int) {
      auto group = init_process_group({.timeout = kNotForEver});
      testing::check_tags(group);
    });
  }
}

TEST_F(PairsOverHosts, AReceiveFromAnyTakesMessagesOfThisHostAndOfOthers) {
  if (hosts_ == nullptr) return;
  for (const auto& host_of : {std::vector{0, 1}, kTwoHosts, {0, 1, 1}}) {
    run_ranks({*hosts_, host_of, ""}, [](int) {
      auto group = init_process_group({.timeout = kNotForEver});
      testing::check_receive_from_any(group);
    });
  }
}

TEST_F(PairsOverHosts, AReceiveFromAnyFailsOnceARankAfarHasDied) {
  if (hosts_ == nullptr) return;
  Shared<std::atomic<bool>> waits, done;
  RankProcesses ranks({*hosts_, kTwoHosts, ""}, [&](int rank) {
    std::optional<ProcessGroup> group = init_process_group({.timeout = kNotForEver});
    group->barrier();
    if (rank == 2) return group.reset();  // in good order
    if (rank != 0) return wait_until([&] { return done->load(); });
    std::vector<float> values(1);
    *waits = true;
    const auto error = thrown_by<RankFailure>([&] { group->receive_from_any(values); });
    *done = true;
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(3));
  });
  ranks.expect_success(2);
  wait_until([&] { return waits->load(); });
  ranks.kill(3);
  ranks.expect_killed(3);
  ranks.expect_success(0);
  ranks.expect_success(1);
}

// The answer to what rank 1 sends must not wait behind the data that rank 1 does not take yet.
TEST_F(PairsOverHosts, AnAnswerDoesNotWaitBehindAnotherMessage) {
  if (hosts_ == nullptr) return;
  run_ranks({*hosts_, {0, 1}, ""}, [](int rank) {
    auto group = init_process_group({.timeout = kNotForEver});
    std::vector<float> large(20'000'000, 1), small(1, 2);
    if (rank == 1) {
      group.send(small, 0);
      group.receive(large, 0);
      return;
    }
    group
        .coalesce([&] {
          static_cast<void>(group.send_async(large, 1));
          static_cast<void>(group.receive_async(small, 1));
        })
        .wait();
  });
}

TEST_F(PairsOverHosts, AMismatchIsToldToBothSides) {
  if (hosts_ == nullptr) return;
  for (const std::size_t count : {10, 20'000'000}) {
    run_ranks({*hosts_, {0, 1, 1}, ""}, [&](int rank) {
      auto group = init_process_group({.timeout = kNotForEver});
      if (rank == 1) return;
      std::vector<float> sent(count), received(9);
      const auto error =
          thrown_by<MismatchError>([&] { rank == 2 ? group.send(sent, 0) : group.receive(received, 2); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->what(), HasSubstr("rank 0 called receive of 9 float32 from rank 2, rank 2 called send of " +
                                           std::to_string(count) + " float32 to rank 0 (message 1)"));
    });
  }
}

// Whether rank 0 sends to rank 2 of another host, or receives from it, and how much.
template <class Check>
void for_each_kind(const Check& check) {
  for (const bool is_send : {true, false}) {
    for (const std::size_t count : {1, 20'000'000}) {
      SCOPED_TRACE(std::string(is_send ? "send" : "receive") + " of " + std::to_string(count));
      check([=](ProcessGroup& group, CollectiveOptions options = {}) {
        std::vector<float> values(count);
        is_send ? group.send(values, 2, options) : group.receive(values, 2, options);
      });
    }
  }
}

TEST_F(PairsOverHosts, ADeadPeerIsNamedAndAThirdRankDoesNotMatter) {
  if (hosts_ == nullptr) return;
  for_each_kind([&](const auto& call) {
    Shared<std::atomic<int>> steps;
    RankProcesses ranks({*hosts_, {0, 0, 1, 1}, ""}, [&](int rank) {
      auto group = init_process_group({.timeout = kNotForEver});
      if (rank == 3) ::raise(SIGKILL);
      std::vector<float> values(10'000);
      if (rank == 1 || rank == 2) {
        wait_until([&] { return steps->load() == 1; });
        rank == 1 ? group.send(values, 2) : group.receive(values, 1);
      }
      if (rank == 1) return;
      if (rank == 2) ::raise(SIGKILL);
      const auto error = thrown_by<RankFailure>([&] { call(group); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->ranks(), ElementsAre(2));
      EXPECT_THAT(error->what(), AllOf(HasSubstr("rank 2 (pid "), HasSubstr(") ended"), HasSubstr("message 1")));
    });
    ranks.expect_killed(3);
    *steps = 1;
    ranks.expect_success(1);
    ranks.expect_killed(2);
    ranks.expect_success(0);
  });
}

TEST_F(PairsOverHosts, APeerThatLeavesIsNamed) {
  if (hosts_ == nullptr) return;
  for_each_kind([&](const auto& call) {
    run_ranks({*hosts_, {0, 1, 1}, ""}, [&](int rank) {
      std::optional<ProcessGroup> group = init_process_group({.timeout = kNotForEver});
      if (rank == 2) return group.reset();
      if (rank == 1) return;
      const auto error = thrown_by<RankFailure>([&] { call(*group); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->ranks(), ElementsAre(2));
    });
  });
}

TEST_F(PairsOverHosts, AnAbortIsToldToThePeerAndEndsACallHere) {
  if (hosts_ == nullptr) return;
  for_each_kind([&](const auto& call) {
    Shared<std::atomic<bool>> done;
    run_ranks({*hosts_, {0, 1, 1}, ""}, [&](int rank) {
      auto group = init_process_group({.timeout = kNotForEver});
      if (rank == 1) return wait_until([&] { return done->load(); });
      if (rank == 0) {
        const auto error = thrown_by<RankFailure>([&] { call(group); });
        *done = true;
        ASSERT_TRUE(error);
        EXPECT_THAT(error->ranks(), ElementsAre(2));
        return;
      }
      std::vector<float> values(1);
      std::thread other([&] { group.abort("a key was pressed"); });
      const auto error = thrown_by<AbortedError>([&] { group.receive(values, 1); });
      other.join();
      ASSERT_TRUE(error);
      wait_until([&] { return done->load(); });
    });
  });
}

// In the midst of a call with it, the peer says why it goes.
TEST_F(PairsOverHosts, AnAbortInTheMidstOfACallSaysSo) {
  if (hosts_ == nullptr) return;
  Shared<std::atomic<int>> met;
  run_ranks({*hosts_, {0, 1}, ""}, [&](int rank) {
    auto group = init_process_group({.timeout = kNotForEver});
    std::vector<float> values(1);
    for (int peer_sends : {0, 1}) rank == peer_sends ? group.send(values, 1 - rank) : group.receive(values, 1 - rank);
    ++*met;
    if (rank == 1) {
      std::thread other([&] {
        wait_until([&] { return met->load() == 2; });
        group.abort("a key was pressed");
      });
      const auto error = thrown_by<AbortedError>([&] { group.receive(values, 0); });
      other.join();
      ASSERT_TRUE(error);
      EXPECT_THAT(error->what(), HasSubstr("a key was pressed"));
    } else {
      const auto error = thrown_by<RankFailure>([&] { group.receive(values, 1); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->what(), AllOf(HasSubstr("rank 1 (pid "), HasSubstr(") aborted the group")));
    }
  });
}

TEST_F(PairsOverHosts, ATimeoutNamesThePeer) {
  if (hosts_ == nullptr) return;
  for_each_kind([&](const auto& call) {
    Shared<std::atomic<bool>> done;
    run_ranks({*hosts_, {0, 1, 1}, ""}, [&](int rank) {
      auto group = init_process_group({.timeout = kNotForEver});
      if (rank != 0) return wait_until([&] { return done->load(); });
      const auto error = thrown_by<TimeoutError>([&] { call(group, {.timeout = milliseconds(1'000)}); });
      *done = true;
      ASSERT_TRUE(error);
      EXPECT_THAT(error->ranks(), ElementsAre(2));
      EXPECT_THAT(error->what(), AllOf(HasSubstr("rank 2 did not come to "), HasSubstr("within 1000 ms"),
                                       Not(HasSubstr("has called no collective"))));
    });
  });
}

TEST_F(PairsOverHosts, ATimeoutNamesThePeersHereAndAfar) {
  if (hosts_ == nullptr) return;
  Shared<std::atomic<bool>> done;
  run_ranks({*hosts_, {0, 0, 1, 1}, ""}, [&](int rank) {
    auto group = init_process_group({.timeout = kNotForEver});
    std::vector<float> values(4), mine(1);
    // Twice: the first time makes the connections, under the timeout of the group.
    if (rank == 0) group.send(mine, 3);
    for (int i = 0; rank == 3 && i < 2; ++i) group.receive(mine, 0);
    if (rank != 0) return wait_until([&] { return done->load(); });
    const auto error = thrown_by<TimeoutError>([&] {
      group
          .coalesce(
              [&] {
                static_cast<void>(group.receive_async(MemoryRange(values.data(), 2), 1));
                static_cast<void>(group.receive_async(MemoryRange(values.data() + 2, 2), 2));
                static_cast<void>(group.send_async(mine, 3));
              },
              {.timeout = milliseconds(10'000)})  // in which rank 3 must answer
          .wait();
    });
    *done = true;
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(1, 2));
    EXPECT_THAT(error->what(), AllOf(HasSubstr("ranks 1 and 2 did not come to "), HasSubstr("within 10000 ms")));
  });
}

// Of calls with a neighbour and with another host at once, one fails and both end.
TEST_F(PairsOverHosts, AMismatchHereEndsWhatIsUnderWayAfar) {
  if (hosts_ == nullptr) return;
  run_ranks({*hosts_, {0, 0, 1}, ""}, [](int rank) {
    auto group = init_process_group({.timeout = kNotForEver});
    std::vector<float> values(10), other(10);
    if (rank == 2) {
      const auto error = thrown_by<RankFailure>([&] { group.receive(values, 0); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->ranks(), ElementsAre(0));
      return;
    }
    const auto error = thrown_by<MismatchError>([&] {
      if (rank == 1) return group.receive(values, 0);
      group
          .coalesce([&] {
            static_cast<void>(group.send_async(ConstMemoryRange(values.data(), 9), 1));
            static_cast<void>(group.receive_async(other, 2));
          })
          .wait();
    });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("rank 0 called send of 9 float32 to rank 1, rank 1 called receive of 10"));
  });
}

TEST_F(PairsOverHosts, WithoutAFreePortOnlyTheseCallsAreRefusedAndTheGroupGoesOn) {
  if (hosts_ == nullptr) return;
  Shared<std::atomic<int>> refusals;
  run_ranks({*hosts_, {0, 0, 1}, ""}, [&](int rank) {
    ::setenv("DDPRUN_PORT_RANGE", "20000-20000", 1);  // which one of the ranks 0 and 1 has, and no connection
    auto group = init_process_group({.timeout = kNotForEver});
    group.barrier();
    std::vector<float> values(10);
    for (const int sender : {0, 1}) {
      if (rank != sender && rank != 2) continue;
      try {
        rank == 2 ? group.receive(values, sender) : group.send(values, 2);
      } catch (const Error& error) {
        ++*refusals;
        EXPECT_THAT(error.what(),
                    AllOf(HasSubstr("has no port for messages from other hosts"), HasSubstr("DDPRUN_PORT_RANGE")));
      }
    }
    group.barrier();
    EXPECT_EQ(refusals->load(), 2) << "both sides of one pair";
  });
}

}  // namespace
}  // namespace ddp
