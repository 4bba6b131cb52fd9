// What ranks on several hosts see when one of them dies, stays away, does something else, or its host falls silent.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"
#include "tests/multihost/multihost.hpp"

namespace ddp {
namespace {

using std::chrono::milliseconds;
using test::Hosts;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kNotForEver;
using testing::RankProcesses;
using testing::run_ranks;
using testing::Shared;
using testing::thrown_by;
using testing::wait_until;

// Ranks 0 and 1 on one host, 2, 3 and 4 on another: 0 and 2 lead.
const std::vector<int> kTwoHosts{0, 0, 1, 1, 1};

class FailureOverHosts : public test::Multihost {
 protected:
  void SetUp() override { hosts_ = make_hosts({}); }

  Hosts* hosts_ = nullptr;
};

// Every rank reduces without end until `dying` is killed in the midst of it.
void expect_death_is_noticed(Hosts& hosts, int dying, bool leaves_child) {
  Shared<std::atomic<int>> calls;
  Shared<std::atomic<pid_t>> orphan;
  RankProcesses ranks({hosts, kTwoHosts, ""}, [&](int rank) {
    auto group = init_process_group({.timeout = kNotForEver});
    if (rank == dying && leaves_child) {
      if (::fork() == 0) {
        ::alarm(60);  // should the test die before its host does
        for (;;) ::pause();
      }
    }
    std::vector<double> values(200'000);
    const auto error = thrown_by<RankFailure>([&] {
      for (;;) {
        group.all_reduce(values);
        if (rank == dying) ++*calls;
      }
    });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(dying)) << error->what();
    EXPECT_THAT(error->what(), AllOf(HasSubstr("rank " + std::to_string(dying) + " (pid "), HasSubstr(") ended"),
                                     HasSubstr("rank " + std::to_string(rank) + " of 5")));
    const auto again = thrown_by<AbortedError>([&] { group.barrier(); });
    ASSERT_TRUE(again);
    EXPECT_THAT(again->what(), HasSubstr("rank " + std::to_string(dying) + " (pid "));
  });
  wait_until([&] { return calls->load() > 3; });
  ranks.kill(dying);
  ranks.expect_killed(dying);
  for (int rank = 0; rank < 5; ++rank) {
    if (rank != dying) ranks.expect_success(rank);
  }
}

TEST_F(FailureOverHosts, ADeadRankIsNamedEverywhere) {
  if (hosts_ != nullptr) expect_death_is_noticed(*hosts_, 3, false);
}

TEST_F(FailureOverHosts, ADeadLeaderIsNamedEverywhere) {
  if (hosts_ != nullptr) expect_death_is_noticed(*hosts_, 2, false);
}

TEST_F(FailureOverHosts, ADeadRank0IsNamedEverywhere) {
  if (hosts_ != nullptr) expect_death_is_noticed(*hosts_, 0, false);
}

TEST_F(FailureOverHosts, ADeadLeaderIsNamedThoughItsForkedChildLivesOn) {
  if (hosts_ != nullptr) expect_death_is_noticed(*hosts_, 2, true);
}

TEST_F(FailureOverHosts, ADeathIsNoticedByThoseWhoWaitForAnother) {
  if (hosts_ == nullptr) return;
  Shared<std::atomic<int>> noticed;
  RankProcesses ranks({*hosts_, kTwoHosts, ""}, [&](int rank) {
    auto group = init_process_group({.timeout = kNotForEver});
    group.barrier();
    if (rank == 3) ::raise(SIGKILL);
    if (rank == 0 || rank == 2) wait_until([&] { return noticed->load() >= 2; });  // the leaders are busy elsewhere
    const auto error = thrown_by<RankFailure>([&] { group.barrier(); });
    ++*noticed;
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(3)) << error->what();
  });
  ranks.expect_killed(3);
  for (const int rank : {0, 1, 2, 4}) ranks.expect_success(rank);
}

TEST_F(FailureOverHosts, AnEndAfterTheLastCollectiveDoesNotSpoilIt) {
  if (hosts_ == nullptr) return;
  for (int round = 0; round < 10; ++round) {
    run_ranks({*hosts_, kTwoHosts, ""}, [](int) {
      auto group = init_process_group();
      std::vector<std::int64_t> ones(1000, 1);
      group.all_reduce(ones);
      EXPECT_EQ(ones[999], 5);
      std::_Exit(::testing::Test::HasFailure() ? 1 : 0);  // at once: others may still be in the call
    });
  }
}

TEST_F(FailureOverHosts, ARankThatLeavesIsNamed) {
  if (hosts_ == nullptr) return;
  for (const int leaver : {1, 2}) {
    run_ranks({*hosts_, kTwoHosts, ""}, [&](int rank) {
      std::optional<ProcessGroup> group = init_process_group({.timeout = kNotForEver});
      group->barrier();
      if (rank == leaver) return group.reset();
      const auto error = thrown_by<RankFailure>([&] { group->barrier(); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->ranks(), ElementsAre(leaver)) << error->what();
      EXPECT_THAT(error->what(), HasSubstr("has left the group"));
    });
  }
}

TEST_F(FailureOverHosts, AnAbortEndsACollectiveHereAndThere) {
  if (hosts_ == nullptr) return;
  for (const int aborter : {0, 4}) {
    run_ranks({*hosts_, kTwoHosts, ""}, [&](int rank) {
      auto group = init_process_group({.timeout = kNotForEver});
      std::vector<float> values(10);
      const auto broadcast_for_ever = [&] {
        for (;;) group.broadcast(values, 1);
      };
      if (rank != aborter) {
        const auto error = thrown_by<RankFailure>(broadcast_for_ever);
        ASSERT_TRUE(error);
        EXPECT_THAT(error->ranks(), ElementsAre(aborter)) << error->what();
        EXPECT_THAT(error->what(), HasSubstr("aborted the group"));
        return;
      }
      std::thread other([&] { group.abort("the user pressed a key"); });
      const auto error = thrown_by<AbortedError>(broadcast_for_ever);
      other.join();
      ASSERT_TRUE(error);
      EXPECT_THAT(error->what(), HasSubstr("the user pressed a key"));
    });
  }
}

TEST_F(FailureOverHosts, AnAbortWakesALeaderThatWaitsForAnotherHost) {
  if (hosts_ == nullptr) return;
  Shared<std::atomic<bool>> done;
  run_ranks({*hosts_, {0, 1}, ""}, [&](int rank) {
    auto group = init_process_group({.timeout = kNotForEver});
    if (rank == 1) return wait_until([&] { return done->load(); });
    std::thread other([&] { group.abort("enough"); });
    thrown_by<AbortedError>([&] { group.barrier(); });
    other.join();
    *done = true;
  });
}

TEST_F(FailureOverHosts, AtTheDeadlineAllNameTheMissingRankAndWhatItDidLast) {
  if (hosts_ == nullptr) return;
  for (const int missing : {1, 2, 3}) {
    SCOPED_TRACE("rank " + std::to_string(missing));
    Shared<std::atomic<int>> timed_out;
    run_ranks({*hosts_, kTwoHosts, ""}, [&](int rank) {
      auto group = init_process_group({.timeout = kNotForEver});
      std::vector<float> values(7);
      group.all_reduce(values);
      if (rank == missing) return wait_until([&] { return timed_out->load() == 4; });
      const auto error = thrown_by<TimeoutError>([&] { group.barrier({.timeout = milliseconds(2'000)}); });
      ++*timed_out;
      ASSERT_TRUE(error);
      EXPECT_THAT(error->ranks(), ElementsAre(missing)) << error->what();
      EXPECT_THAT(error->what(),
                  AllOf(HasSubstr("rank " + std::to_string(missing) + " did not come to barrier, call 2"),
                        HasSubstr("last called all_reduce of 7 float32 (sum), call 1")));
    });
  }
}

TEST_F(FailureOverHosts, AMonitoredBarrierNamesTheMissingRanksOfAllHosts) {
  Shared<std::atomic<int>> timed_out;
  run_ranks({*hosts_, {0, 0, 0, 1, 1, 1}, ""}, [&](int rank) {
    auto group = init_process_group({.timeout = kNotForEver});
    group.monitored_barrier();
    if (rank == 1 || rank == 4 || rank == 5) return wait_until([&] { return timed_out->load() == 3; });
    const auto error = thrown_by<TimeoutError>([&] { group.monitored_barrier({.timeout = milliseconds(2'000)}); });
    ++*timed_out;
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(1, 4, 5));
    EXPECT_THAT(error->what(), HasSubstr("ranks 1, 4 and 5 did not come to barrier"));
  });
}

TEST_F(FailureOverHosts, AMonitoredBarrierNamesNobodyWhoHasCome) {
  Shared<std::atomic<int>> timed_out;
  run_ranks({*hosts_, kTwoHosts, ""}, [&](int rank) {
    auto group = init_process_group({.timeout = kNotForEver});
    if (rank == 3) return wait_until([&] { return timed_out->load() == 4; });
    const auto error = thrown_by<TimeoutError>([&] { group.monitored_barrier({.timeout = milliseconds(2'000)}); });
    ++*timed_out;
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(3));
  });
}

// Rank 0's host is complete and waits for the two others. That of rank 1 gives up while the third, which is incomplete
// too, still waits: rank 0 hears of the end of one, and has to ask the other.
TEST_F(FailureOverHosts, AMonitoredBarrierNamesTheMissingRanksOfAHostThatIsStillWaiting) {
  Hosts* const hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  Shared<std::atomic<int>> timed_out;
  run_ranks({*hosts, {0, 1, 1, 2, 2}, ""}, [&](int rank) {
    auto group = init_process_group({.timeout = kNotForEver});
    group.monitored_barrier();
    if (rank == 2 || rank == 4) return wait_until([&] { return timed_out->load() == 3; });
    const milliseconds timeout(rank == 1 ? 2'000 : 6'000);
    const auto error = thrown_by<TimeoutError>([&] { group.monitored_barrier({.timeout = timeout}); });
    ++*timed_out;
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(2, 4)) << error->what();
  });
}

TEST_F(FailureOverHosts, RanksOfASilentHostAreNamedAtTheDeadline) {
  if (hosts_ == nullptr) return;
  Shared<std::atomic<int>> ready;
  Shared<std::atomic<bool>> is_cut;
  RankProcesses ranks({*hosts_, kTwoHosts, ""}, [&](int rank) {
    auto group = init_process_group({.timeout = kNotForEver});
    group.barrier();
    ++*ready;
    wait_until([&] { return is_cut->load(); });
    const auto error = thrown_by<TimeoutError>([&] { group.barrier({.timeout = milliseconds(2'000)}); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->ranks(), rank < 2 ? (std::vector<int>{2, 3, 4}) : (std::vector<int>{0, 1})) << error->what();
    EXPECT_THAT(error->what(), HasSubstr(rank < 2 ? "; rank 2 (pid " : "; rank 0 (pid "));
    EXPECT_THAT(error->what(), HasSubstr(") did not answer"));
  });
  wait_until([&] { return ready->load() == 5; });
  hosts_->cut(1);
  *is_cut = true;
  for (int rank = 0; rank < 5; ++rank) ranks.expect_success(rank);
}

TEST_F(FailureOverHosts, AMismatchIsToldToAllWithBothSides) {
  if (hosts_ == nullptr) return;
  for (const int other : {1, 3}) {
    run_ranks({*hosts_, kTwoHosts, ""}, [&](int rank) {
      auto group = init_process_group({.timeout = kNotForEver});
      group.barrier();
      std::vector<float> values(100);
      const auto error = thrown_by<MismatchError>([&] { rank == other ? group.barrier() : group.all_reduce(values); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->what(), HasSubstr("rank 0 called all_reduce of 100 float32 (sum), rank " +
                                           std::to_string(other) + " called barrier (call 2)"));
    });
  }
}

TEST_F(FailureOverHosts, MemoryThatOneRankCanNotHaveIsRefusedToAll) {
  if (hosts_ == nullptr) return;
  run_ranks({*hosts_, kTwoHosts, ""}, [](int rank) {
    auto group = init_process_group({.timeout = kNotForEver});
    if (rank == 3) {
      const rlimit limit{32u << 20, 32u << 20};
      ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    }
    const auto error = thrown_by<Error>([&] { group.allocate(64u << 20); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("rank 3 can't have 67108864 bytes"));
    auto memory = group.allocate(1000);  // the group goes on
    auto* const values = static_cast<std::int64_t*>(memory.data());
    values[0] = rank;
    group.all_reduce({values, 1});
    EXPECT_EQ(values[0], 10);
  });
}

TEST_F(FailureOverHosts, TheMeetingNamesARankThatNeverCame) {
  if (hosts_ == nullptr) return;
  for (const int absent : {1, 2, 4}) {
    const auto body = [&](int) {
      const auto error = thrown_by<TimeoutError>([] { init_process_group({.timeout = milliseconds(3'000)}); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->ranks(), ElementsAre(absent)) << error->what();
    };
    RankProcesses ranks({*hosts_, kTwoHosts, ""}, body, {absent});
    for (int rank = 0; rank < 5; ++rank) {
      if (rank != absent) ranks.expect_success(rank);
    }
  }
}

TEST_F(FailureOverHosts, ALaunchThatTakesTwoHostsForOneIsRefused) {
  if (hosts_ == nullptr) return;
  run_ranks({*hosts_, {0, 1}, ""}, [](int rank) {
    ::setenv("LOCAL_WORLD_SIZE", "2", 1);
    ::setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
    if (rank == 0) {
      thrown_by<TimeoutError>([] { init_process_group({.timeout = milliseconds(5'000)}); });
      return;
    }
    const auto error = thrown_by<InvalidArgument>([] { init_process_group({.timeout = kNotForEver}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("LOCAL_WORLD_SIZE says that all ranks share a host"));
  });
}

}  // namespace
}  // namespace ddp
