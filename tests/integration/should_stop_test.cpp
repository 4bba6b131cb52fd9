// should_stop() in real processes, whose agent the test plays.
#include <ddp/ddp.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/integration/rank_processes.hpp"
#include "tests/integration/stand_in_agent.hpp"

namespace ddp {
namespace {

using testing::kRound;
using testing::RankProcesses;
using testing::Shared;
using testing::StandInAgent;
using testing::wait_until;
using worker_link::LinkHello;
using worker_link::LinkLeft;
using worker_link::LinkPrepareStop;
using worker_link::LinkRoundOver;
using worker_link::LinkSeat;
using worker_link::LinkStop;
using worker_link::LinkStopAt;
using worker_link::LinkStopping;
using worker_link::LinkStopReady;

constexpr int kSize = 3;

struct Watched {
  std::atomic<int> begun[kSize], answered[kSize];  // calls, by rank
  std::atomic<int> held_before;                    // nobody begins this call, but ranks below first_held; 0: all go on
  std::atomic<int> first_held;
  std::atomic<bool> flag;
};

// Until should_stop() says yes. Each step is a barrier: a rank is at most one call ahead of another. Returns the call.
int train(ProcessGroup& world, Watched& watched) {
  for (int call = 1;; ++call) {
    wait_until(
        [&] { return watched.held_before == 0 || call < watched.held_before || world.rank() < watched.first_held; });
    watched.begun[world.rank()] = call;
    if (world.should_stop()) return call;
    watched.answered[world.rank()] = call;
    world.barrier();
  }
}

TEST(ShouldStop, WithoutAnAgent_ItIsFalseAndSigtermStaysWhatItWas) {
  testing::run_ranks(2, [](int) {
    auto world = init_process_group();
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(world.should_stop());
    struct sigaction action {};
    ::sigaction(SIGTERM, nullptr, &action);
    EXPECT_EQ(action.sa_handler, SIG_DFL);
  });
}

TEST(ShouldStop, AProcessSaysThatItTakesStopsWithItsFirstCall) {
  StandInAgent agent(1);
  RankProcesses ranks(1, [&](int rank) {
    agent.adopt(rank, kRound);
    auto world = init_process_group();
    auto second = init_process_group();
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(world.should_stop() || second.should_stop());
  });
  EXPECT_EQ(agent.hear<LinkHello>(0), (LinkHello{worker_link::kVersion, false, false}));
  EXPECT_EQ(agent.hear<LinkHello>(0), (LinkHello{worker_link::kVersion, false, true}));
  ranks.expect_success(0);
  const worker_link::Departure in_order{kRound, worker_link::Departure::Kind::in_order, {}, ""};
  EXPECT_EQ(agent.hear<LinkHello>(0), (LinkHello{worker_link::kVersion, false, true, in_order}));
  EXPECT_EQ(agent.count_rest<LinkHello>(0), 0);
}

TEST(ShouldStop, OneRankIsAhead_AllStopAtTheCallThatItCanStillAnswer) {
  StandInAgent agent(kSize);
  const Shared<Watched> watched;
  watched->held_before = 5;
  watched->first_held = 1;
  RankProcesses ranks(kSize, [&](int rank) {
    agent.adopt(rank, kRound);
    auto world = init_process_group();
    EXPECT_EQ(train(world, *watched), 6);
    EXPECT_TRUE(world.should_stop()) << "who asks again is told again";
    world.barrier();
  });
  wait_until([&] { return watched->answered[0] == 5 && watched->answered[1] == 4 && watched->answered[2] == 4; });
  agent.tell_all(LinkPrepareStop{kRound});
  EXPECT_EQ(agent.hear<LinkStopReady>(0), (LinkStopReady{kRound, 6}));
  EXPECT_EQ(agent.hear<LinkStopReady>(1), (LinkStopReady{kRound, 5}));
  EXPECT_EQ(agent.hear<LinkStopReady>(2), (LinkStopReady{kRound, 5}));
  agent.tell(1, LinkPrepareStop{kRound});
  EXPECT_EQ(agent.hear<LinkStopReady>(1), (LinkStopReady{kRound, 5})) << "asked again it says the same";
  watched->held_before = 0;
  agent.tell_all(LinkStopAt{kRound, 6});
  for (int rank = 0; rank < kSize; ++rank) {
    EXPECT_EQ(agent.hear<LinkStopping>(rank), LinkStopping{kRound});
    ranks.expect_success(rank);
    EXPECT_EQ(agent.count_rest<LinkStopping>(rank), 0) << "it is said once";
  }
}

TEST(ShouldStop, RanksWaitInTheCallThatTheyNamedUntilTheyAreTold) {
  StandInAgent agent(kSize);
  const Shared<Watched> watched;
  watched->held_before = 4;
  RankProcesses ranks(kSize, [&](int rank) {
    agent.adopt(rank, kRound);
    auto world = init_process_group();
    EXPECT_EQ(train(world, *watched), 4);
  });
  for (int rank = 0; rank < kSize; ++rank) wait_until([&] { return watched->answered[rank] == 3; });
  agent.tell_all(LinkPrepareStop{kRound});
  for (int rank = 0; rank < kSize; ++rank) EXPECT_EQ(agent.hear<LinkStopReady>(rank), (LinkStopReady{kRound, 4}));
  watched->held_before = 0;
  for (int rank = 0; rank < kSize; ++rank) wait_until([&] { return watched->begun[rank] == 4; });
  agent.tell_all(LinkStopAt{kRound, 4});
  for (int rank = 0; rank < kSize; ++rank) ranks.expect_success(rank);
}

// The stop has come to nothing, and something else ends what they do next.
TEST(ShouldStop, WhereTheRoundEndsInstead_WhoWaitsGoesOn) {
  StandInAgent agent(1);
  const Shared<Watched> watched;
  RankProcesses ranks(1, [&](int rank) {
    agent.adopt(rank, kRound);
    auto world = init_process_group();
    while (!watched->flag) EXPECT_FALSE(world.should_stop());
  });
  agent.tell(0, LinkPrepareStop{kRound});  // answered with the first call, at the earliest
  agent.hear<LinkStopReady>(0);
  agent.tell(0, LinkRoundOver{kRound, "another rank has failed"});
  watched->flag = true;
  ranks.expect_success(0);
}

TEST(ShouldStop, AskedWhileTheRanksMeet_TheyAnswerWhenTheyHaveMet) {
  constexpr std::uint32_t kNext = kRound + 1;
  StandInAgent agent(2);
  const Shared<Watched> watched;
  RankProcesses ranks(2, [&](int rank) {
    agent.adopt(rank, kRound);
    ElasticState state;
    run_elastic(state, [&](ProcessGroup world) { train(world, *watched); });
    EXPECT_EQ(watched->begun[rank], 1);
  });
  for (int rank = 0; rank < 2; ++rank) wait_until([&] { return watched->answered[rank] >= 1; });
  agent.tell_all(LinkRoundOver{kRound, "for the test"});
  for (int rank = 0; rank < 2; ++rank) agent.hear<LinkLeft>(rank);
  agent.tell_all(LinkPrepareStop{kNext});
  agent.tell_all(LinkSeat{{{"DDPRUN_ROUND_ID", testing::round_id(kNext)}}});
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(agent.hear<LinkStopReady>(rank), (LinkStopReady{kNext, 1}));
  agent.tell_all(LinkStopAt{kNext, 1});
  for (int rank = 0; rank < 2; ++rank) ranks.expect_success(rank);
}

TEST(ShouldStop, AnotherRoundsQuestionIsPassedOver_AfterAReseatCallsCountAnew) {
  constexpr std::uint32_t kNext = kRound + 1;
  StandInAgent agent(2);
  const Shared<Watched> watched;
  RankProcesses ranks(2, [&](int rank) {
    agent.adopt(rank, kRound);
    ElasticState state;
    std::vector<int> steps(2, 0);  // by round
    ProcessGroup old;
    run_elastic(state, [&](ProcessGroup world) {
      const bool is_first = world.round().number == kRound;
      if (is_first) old = world;
      watched->held_before = is_first ? 0 : 3;
      train(world, *watched);
      EXPECT_FALSE(is_first);
      EXPECT_FALSE(old.should_stop()) << "its round has ended";
    });
    EXPECT_EQ(watched->begun[rank], 4);
  });
  for (int rank = 0; rank < 2; ++rank) wait_until([&] { return watched->answered[rank] >= 10; });
  agent.tell_all(LinkRoundOver{kRound, "for the test"});
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(agent.hear<LinkLeft>(rank).round, kRound);
  agent.tell_all(LinkSeat{{{"DDPRUN_ROUND_ID", testing::round_id(kNext)}}});
  for (int rank = 0; rank < 2; ++rank) wait_until([&] { return watched->answered[rank] == 2; });
  agent.tell_all(LinkPrepareStop{kRound});
  agent.tell_all(LinkPrepareStop{kNext});
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(agent.hear<LinkStopReady>(rank), (LinkStopReady{kNext, 3}));
  agent.tell_all(LinkStopAt{kNext, 4});
  agent.tell_all(LinkStopAt{kRound, 9});
  agent.tell_all(LinkPrepareStop{kNext});
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(agent.hear<LinkStopReady>(rank), (LinkStopReady{kNext, 3}));
  watched->held_before = 0;
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(agent.hear<LinkStopping>(rank), LinkStopping{kNext});
    ranks.expect_success(rank);
  }
}

TEST(ShouldStop, TwoGroupsOfARoundCountTogether) {
  StandInAgent agent(1);
  const Shared<Watched> watched;
  RankProcesses ranks(1, [&](int rank) {
    agent.adopt(rank, kRound);
    auto first = init_process_group();
    EXPECT_FALSE(first.should_stop());
    auto second = init_process_group();
    EXPECT_FALSE(second.should_stop());
    watched->flag = true;
    wait_until([&] { return !watched->flag; });
    EXPECT_TRUE(first.should_stop());
    EXPECT_TRUE(second.should_stop());
  });
  wait_until([&] { return watched->flag.load(); });
  agent.tell(0, LinkPrepareStop{kRound});
  EXPECT_EQ(agent.hear<LinkStopReady>(0), (LinkStopReady{kRound, 3}));
  agent.tell(0, LinkStopAt{kRound, 3});
  watched->flag = false;
  ranks.expect_success(0);
}

// --- SIGTERM ---

[[noreturn]] void live_on() {
  while (true) ::pause();
}

// Once this is heard, all that the rank was told before has been taken in.
void expect_has_heard(const StandInAgent& agent, int rank) {
  agent.tell(rank, LinkPrepareStop{kRound});
  agent.hear<LinkStopReady>(rank);
}

TEST(ShouldStop, SigtermThatIsNotMeantIsPassedOver) {
  StandInAgent agent(1);
  RankProcesses ranks(1, [&](int rank) {
    agent.adopt(rank, kRound);
    auto world = init_process_group();
    EXPECT_FALSE(world.should_stop());
    ::raise(SIGTERM);
    ::raise(SIGTERM);
    EXPECT_FALSE(world.should_stop());
  });
  ranks.expect_success(0);
}

TEST(ShouldStop, SigtermBeforeItIsMeant_EndsTheProcessThen) {
  for (const bool is_told : {true, false}) {
    SCOPED_TRACE(is_told ? "it is told" : "nobody is left to tell it");
    StandInAgent agent(1);
    const Shared<Watched> watched;
    RankProcesses ranks(1, [&](int rank) {
      agent.adopt(rank, kRound);
      auto world = init_process_group();
      static_cast<void>(world.should_stop());
      ::raise(SIGTERM);
      watched->flag = true;
      live_on();
    });
    wait_until([&] { return watched->flag.load(); });
    is_told ? agent.tell(0, LinkStop{"for the test"}) : agent.hang_up(0);
    ranks.expect_killed(0, SIGTERM);
  }
}

TEST(ShouldStop, SigtermAfterItIsMeant_EndsTheProcess) {
  StandInAgent agent(1);
  const Shared<Watched> watched;
  RankProcesses ranks(1, [&](int rank) {
    agent.adopt(rank, kRound);
    auto world = init_process_group();
    static_cast<void>(world.should_stop());
    watched->flag = true;
    wait_until([&] { return !watched->flag; });
    ::raise(SIGTERM);
    live_on();
  });
  wait_until([&] { return watched->flag.load(); });
  agent.tell(0, LinkStop{"for the test"});
  expect_has_heard(agent, 0);
  watched->flag = false;
  ranks.expect_killed(0, SIGTERM);
}

TEST(ShouldStop, TheProgramsOwnHandlerIsLeftAlone) {
  static volatile sig_atomic_t count = 0;
  for (const bool is_before : {true, false}) {
    SCOPED_TRACE(is_before ? "set before the first call" : "set after it");
    StandInAgent agent(1);
    const Shared<Watched> watched;
    RankProcesses ranks(1, [&](int rank) {
      agent.adopt(rank, kRound);
      const auto set_own = [] { ::signal(SIGTERM, [](int) { count = count + 1; }); };
      auto world = init_process_group();
      if (is_before) set_own();
      EXPECT_FALSE(world.should_stop());
      if (!is_before) ::raise(SIGTERM);  // kept
      if (!is_before) set_own();
      watched->flag = true;
      wait_until([&] { return !watched->flag; });
      ::raise(SIGTERM);
      EXPECT_EQ(count, 1);
    });
    wait_until([&] { return watched->flag.load(); });
    agent.tell(0, LinkStop{"for the test"});
    expect_has_heard(agent, 0);
    watched->flag = false;
    ranks.expect_success(0);
  }
}

TEST(ShouldStop, AForkedChildHasNoPartInIt) {
  StandInAgent agent(1);
  RankProcesses ranks(1, [&](int rank) {
    agent.adopt(rank, kRound);
    auto world = init_process_group();
    EXPECT_FALSE(world.should_stop());
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (world.should_stop()) ::_exit(1);
      ElasticState().commit();
      CheckpointDirectory("nowhere");
#ifdef __SANITIZE_THREAD__
      ::signal(SIGTERM, SIG_DFL);  // the sanitizer calls no handler in a forked child
#endif
      ::raise(SIGTERM);
      live_on();
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  });
  ranks.expect_success(0);
  EXPECT_EQ(agent.count_rest<worker_link::LinkProgress>(0), 0);
}

// --- the end of the process ---

TEST(ShouldStop, AProcessMayEndFromAnyThread) {
  StandInAgent agent(1);
  RankProcesses ranks(1, [&](int rank) {
    agent.adopt(rank, kRound);
    static ProcessGroup world = init_process_group();
    EXPECT_FALSE(world.should_stop());
    std::thread([] { std::exit(0); }).join();
  });
  for (int i = 0; i < 100; ++i) agent.tell(0, LinkRoundOver{kRound + 1, "its thread is busy"});
  ranks.expect_success(0);
}

}  // namespace
}  // namespace ddp
