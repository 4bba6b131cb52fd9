#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/sanitized.hpp"
#include "tests/simulation/history.hpp"
#include "tests/simulation/world.hpp"

namespace ddp::simulation {
namespace {

// Under a sanitizer, without optimisation, a history takes 50 times as long. Wrong use of memory shows in a few; the
// rules are checked by the release build.
constexpr std::uint64_t kShorter = test::kIsSanitized ? 10 : 1, kMuchShorter = test::kIsSanitized ? 50 : 1;
constexpr std::uint64_t kHistories = 10'000 / kMuchShorter, kHistoriesAsJson = 500 / kShorter,
                        kHistoriesWithPorts = 2'000 / kMuchShorter, kHistoriesWithSeats = 5'000 / kMuchShorter,
                        kHistoriesWithLookUps = 2'000 / kMuchShorter;

// Each found a bug; what it was.
constexpr struct {
  std::uint64_t seed;
  const char* found;
} kFound[] = {
    {35, "a round began while a node that had been cut off still ran the one before"},
    {174, "a node that came again to a job that had ended waited for its verdict for ever"},
    {307, "a spare that was told to stop was forgotten, and waited for ever"},
    {430, "an agent that gave its connection up seemed to have ended: both sides of a partition went on"},
    {736, "a stop that membership never heard of was forgotten with the stop of the round"},
    {955, "a node had stopped its workers, out of touch, and those of the others waited for it"},
    {18853, "a node kept its group rank of an older round, and another lost it, where a newer round was adopted"},
    {43999, "a node that had been cut off came back with its round, and began a job again that was over"},
    {57520, "the same, as a spare of that job came back too"},
    {65459, "the same, with the daemon that had seen the job end"},
    {27525, "two nodes went on: one took the other for ended, which was frozen and could not resume its connection"},
    {33814, "the simulation lost the end of a connection that was being made"},
    {156809, "a round that had been given up was taken up again, after all nodes of the newer one had left"},
    {61696, "the end of a round that nobody knew any more was told again, and taken for that of a round of its number"},
    {145625, "a new daemon agreed on another step than the one that workers of the round had been told to stop at"},
    {1606, "rounds without end, on a node that had been told to stop"},
    {198, "a round of another term had the store of a round of its number"},
    {8015493, "restarts were forgotten where all nodes had left a daemon, and one that was left behind came again"},
    {10197698, "the same, with a daemon that was started again"},
};

// The same, of histories with faults that are switched on.
constexpr struct {
  std::uint64_t seed;
  const char* faults;
  const char* found;
} kFoundWithFaults[] = {
    {4962, "close", "a daemon gave a job up, and a node that came again then waited for its verdict for ever"},
    {126, "stall", "the same"},
    {12490, "stall", "the same"},
};

std::string replay(std::uint64_t seed) {
  return "replay: membership_simulation --trace --seed=" + std::to_string(seed);
}

TEST(MembershipSimulation, NoHistoryBreaksARule) {
  std::size_t rounds = 0, completed = 0, sockets_let_go = 0;
  for (std::uint64_t seed = 1; seed <= kHistories; ++seed) {
    const auto result = play(seed, {});
    ASSERT_EQ(result.violation, "") << replay(seed);
    sockets_let_go += result.sockets_let_go;
    rounds += result.rounds;
    completed += result.completed;
  }
  EXPECT_GT(completed, kHistories) << "histories in which hardly any round runs prove little";
  EXPECT_GT(rounds, completed);
  if (kMuchShorter == 1) {
    EXPECT_GT(sockets_let_go, 0u) << "no agent gives up more connections than it keeps";
  }
}

TEST(MembershipSimulation, HistoriesThatFoundABugPass) {
  for (const auto& [seed, found] : kFound) EXPECT_EQ(play(seed, {}).violation, "") << found << "; " << replay(seed);
  for (const auto& [seed, faults, found] : kFoundWithFaults) {
    HistoryOptions options;
    options.faults = faults_of(faults);
    EXPECT_EQ(play(seed, options).violation, "") << found << "; " << replay(seed) << " --faults=" << faults;
  }
}

TEST(MembershipSimulation, MessagesMayGoThroughTheirTexts) {
  HistoryOptions options;
  options.as_json = true;
  for (std::uint64_t seed = 1; seed <= kHistoriesAsJson; ++seed)
    ASSERT_EQ(play(seed, options).violation, "") << replay(seed) << " --json";
}

// Of seeds 1 to `histories` none breaks a rule, and rounds are completed in most.
void expect_meetings(const HistoryOptions& options, std::uint64_t histories, const char* switches) {
  std::size_t completed = 0;
  for (std::uint64_t seed = 1; seed <= histories; ++seed) {
    const auto result = play(seed, options);
    ASSERT_EQ(result.violation, "") << replay(seed) << switches;
    completed += result.completed;
  }
  EXPECT_GT(completed, histories) << "the nodes hardly ever meet";
}

TEST(MembershipSimulation, TheEndpointMayBeAtOneOfSeveralPortsOfWhichOthersHaveSome) {
  HistoryOptions options;
  options.has_ports = true;
  expect_meetings(options, kHistoriesWithPorts, " --ports");
}

TEST(MembershipSimulation, NodesMayLookUpWhereTheEndpointIs) {
  HistoryOptions options;
  options.has_look_ups = true;
  expect_meetings(options, kHistoriesWithLookUps, " --look-ups");
}

TEST(MembershipSimulation, WorkersMayLiveOnFromRoundToRound) {
  HistoryOptions options;
  options.has_seats = true;
  std::size_t completed = 0, seats_given = 0, killed_alone = 0;
  for (std::uint64_t seed = 1; seed <= kHistoriesWithSeats; ++seed) {
    options.as_json = seed % 10 == 0;
    const auto result = play(seed, options);
    ASSERT_EQ(result.violation, "") << replay(seed) << " --seats" << (options.as_json ? " --json" : "");
    completed += result.completed;
    seats_given += result.seats_given;
    killed_alone += result.killed_alone;
  }
  EXPECT_GT(completed, kHistoriesWithSeats);
  EXPECT_GT(seats_given, kHistoriesWithSeats) << "hardly any worker lives on";
  EXPECT_GT(killed_alone, kHistoriesWithSeats / 10);
}

TEST(MembershipSimulation, EachFaultWithASwitchIsDrawnWhereItIsOnAndNoneElse) {
  for (const auto fault : faults_of("all")) {
    SCOPED_TRACE(name_of(fault));
    HistoryOptions options;
    options.faults = {fault};
    FaultCounts drawn{};
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      const auto counts = play(seed, options).drawn;
      for (std::size_t i = 0; i < kFaults; ++i) drawn[i] += counts[i];
    }
    for (std::size_t i = 0; i < kFaults; ++i) EXPECT_EQ(drawn[i] > 0, i == index_of(fault)) << drawn[i];
  }
}

TEST(MembershipSimulation, AnUnknownFaultIsRefusedWithTheNamesOfAll) {
  EXPECT_EQ(faults_of("all").size(), kFaults);
  EXPECT_EQ(faults_of("one-way,late-death"), (std::set<Fault>{Fault::one_way, Fault::late_death}));
  try {
    faults_of("reset,tyop");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_EQ(std::string(error.what()),
              "there is no fault 'tyop'; there are: all, reset, refusal, close, one-way, cut, stall, late-death, "
              "replaced-host, stop, slow-files, failed-calls, replaced-endpoint, full-daemon, crashed-hosts, "
              "restart-window, time-limit, reasons, deadly-signals, stop-signals");
  }
}

// Plays histories with one fault, none of which may break a rule. Returns how often they have counted.
std::size_t play_with(Fault fault, std::size_t HistoryResult::*counted) {
  HistoryOptions options;
  options.faults = {fault};
  std::size_t count = 0;
  for (std::uint64_t seed = 1; seed <= 1000 / kShorter; ++seed) {
    const auto result = play(seed, options);
    EXPECT_EQ(result.violation, "") << replay(seed) << " --faults=" << name_of(fault);
    if (!result.violation.empty()) break;
    count += result.*counted;
  }
  return count;
}

TEST(MembershipSimulation, KilledWorkerWhoseEndIsReportedLateIsTheCause) {
  EXPECT_GT(play_with(Fault::late_death, &HistoryResult::blamed_right), 50 / kShorter)
      << "deaths that nothing else disturbs are too rare to prove anything";
}

TEST(MembershipSimulation, FilesThatTakeSecondsBreakNoRule) {
  EXPECT_GT(play_with(Fault::slow_files, &HistoryResult::late_answers), 200 / kShorter);
}

TEST(MembershipSimulation, CallsThatFailBreakNoRule) {
  HistoryOptions options;
  options.faults = {Fault::failed_calls};
  CallCounts failed{};
  for (std::uint64_t seed = 1; seed <= 1000 / kShorter; ++seed) {
    options.has_seats = seed % 2 == 0;
    const auto result = play(seed, options);
    ASSERT_EQ(result.violation, "") << replay(seed) << " --faults=failed-calls"
                                    << (options.has_seats ? " --seats" : "");
    for (std::size_t i = 0; i < kCalls; ++i) failed[i] += result.failed_calls[i];
  }
  for (std::size_t i = 0; i < kCalls; ++i) EXPECT_GE(failed[i], 10 / kShorter) << name_of(static_cast<Call>(i));
}

TEST(MembershipSimulation, DaemonThatIsFullBreaksNoRule) {
  EXPECT_GT(play_with(Fault::full_daemon, &HistoryResult::refused_new), kShorter > 1 ? 0 : 20);
  EXPECT_GT(play_with(Fault::full_daemon, &HistoryResult::refused_with_round), 200 / kShorter);
}

// A job that works undisturbed until a scheduler signals every process of it.
TEST(MembershipSimulation, AWorkersDeathByASchedulersSignalIsNoFailureInWhateverOrderProcessesGetIt) {
  for (std::uint64_t seed = 1; seed <= 2000 / kShorter; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed, false);
    auto& dice = world.scheduler_dice;
    auto& job = world.job;
    job.hosts = job.nodes_max = dice.between(1, 5);
    job.nodes_min = dice.between(1, job.nodes_max);
    job.restarts_max = dice.one_of<int>({0, 3});
    job.is_daemon_apart = dice.chance(40);
    job.signal_window = 200ms;
    job.network.delay_max = dice.one_of<Duration>({200us, 2ms, 20ms});
    job.workers.stop_max = dice.one_of<Duration>({2ms, 50ms, 1s});
    job.workers.takes_stops_percent = dice.one_of<int>({0, 50, 100});
    job.workers.leaves_orphan_percent = dice.one_of<int>({0, 50});
    job.workers_max = 3;
    world.begin();
    if (job.is_daemon_apart) world.start_daemon();
    for (int host = 0; host < job.hosts; ++host) world.start_node(host);
    ASSERT_TRUE(world.clock.run_until(world.clock.now() + 10s, 100'000));
    for (const auto& node : world.nodes()) ASSERT_TRUE(node->workers().do_all_work());
    const auto round = world.nodes().front()->round().round;
    const int number = dice.one_of<int>({SIGTERM, SIGINT, SIGUSR1});
    world.signal_every_process(number, 199ms);
    ASSERT_TRUE(world.clock.run_until(world.clock.now() + 60s, 100'000));
    ASSERT_TRUE(world.nodes_alive().empty());
    for (const auto& node : world.nodes()) {
      ASSERT_EQ(node->round().round, round) << "a restart";
      const bool has_stopped_at_step = node->exit_code() == rendezvous::kStoppedAtStep;
      ASSERT_TRUE(node->exit_code() == 128 + number || (job.workers.takes_stops_percent > 0 && has_stopped_at_step))
          << *node->exit_code();
    }
  }
}

TEST(MembershipSimulation, TheSameSeedGivesTheSameHistory) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::vector<std::string> lines[2];
    for (auto& its : lines) {
      HistoryOptions options;
      options.trace = [&its](const std::string& line) { its.push_back(line); };
      play(seed, options);
    }
    ASSERT_EQ(lines[0], lines[1]) << replay(seed);
    ASSERT_FALSE(lines[0].empty());
  }
}

}  // namespace
}  // namespace ddp::simulation
