#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/history.hpp"

namespace ddp::simulation {
namespace {

constexpr std::uint64_t kHistories = 10'000, kHistoriesAsJson = 500, kHistoriesWithPorts = 2'000;

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
    {27525, "two nodes went on: one took the other for ended, which was frozen and could not resume its connection (exempt)"},
    {33814, "the simulation lost the end of a connection that was being made"},
    {156809, "a round that had been given up was taken up again, after all nodes of the newer one had left"},
    {1606, "rounds without end, on a node that had been told to stop"},
};

std::string replay(std::uint64_t seed) { return "replay: membership_simulation --trace --seed=" + std::to_string(seed); }

TEST(MembershipSimulation, NoHistoryBreaksARule) {
  std::size_t rounds = 0, completed = 0;
  for (std::uint64_t seed = 1; seed <= kHistories; ++seed) {
    const auto result = play(seed, {});
    ASSERT_EQ(result.violation, "") << replay(seed);
    rounds += result.rounds;
    completed += result.completed;
  }
  EXPECT_GT(completed, kHistories) << "histories in which hardly any round runs prove little";
  EXPECT_GT(rounds, completed);
}

TEST(MembershipSimulation, HistoriesThatFoundABugPass) {
  for (const auto& [seed, found] : kFound) EXPECT_EQ(play(seed, {}).violation, "") << found << "; " << replay(seed);
}

TEST(MembershipSimulation, MessagesMayGoThroughTheirTexts) {
  HistoryOptions options;
  options.as_json = true;
  for (std::uint64_t seed = 1; seed <= kHistoriesAsJson; ++seed)
    ASSERT_EQ(play(seed, options).violation, "") << replay(seed) << " --json";
}

TEST(MembershipSimulation, TheEndpointMayBeAtOneOfSeveralPortsOfWhichOthersHaveSome) {
  HistoryOptions options;
  options.has_ports = true;
  std::size_t completed = 0;
  for (std::uint64_t seed = 1; seed <= kHistoriesWithPorts; ++seed) {
    const auto result = play(seed, options);
    ASSERT_EQ(result.violation, "") << replay(seed) << " --ports";
    completed += result.completed;
  }
  EXPECT_GT(completed, kHistoriesWithPorts) << "the nodes hardly ever meet";
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
