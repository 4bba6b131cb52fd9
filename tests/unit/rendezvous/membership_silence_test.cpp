// Nodes fall silent.
#include <algorithm>

#include "membership_job.hpp"

namespace ddp::rendezvous {
namespace {

TEST_F(Job, OnlyTheGreaterPartGoesOnWhereNodesFellSilent) {
  // Group ranks 0 to nodes - 1 are the nodes 1 to `nodes`; node 1 has the endpoint.
  const struct {
    int nodes;
    std::vector<std::uint64_t> silent, ended;
    bool goes_on;
  } cases[] = {
      {2, {2}, {}, true},        {3, {2}, {}, true},        {3, {2, 3}, {}, false},  {3, {3}, {2}, true},
      {4, {2, 3, 4}, {}, false}, {4, {2, 3}, {}, true},     {4, {2, 3}, {4}, false}, {4, {4}, {2, 3}, true},
      {4, {}, {2, 3, 4}, true},  {5, {3, 4, 5}, {}, false},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::to_string(c.nodes) + " nodes, " + std::to_string(c.silent.size()) + " silent, " +
                 std::to_string(c.ended.size()) + " ended");
    started.clear();
    stepped_down.reset();
    begin(1, c.nodes);
    for (int i = 1; i <= c.nodes; ++i) join(static_cast<std::uint64_t>(i), "h" + std::to_string(i), {}, i == 1);
    for (const auto id : c.ended) leaves(id);
    for (const auto id : c.silent) falls_silent(id);
    for (int i = 1; i <= c.nodes; ++i) {
      const auto id = static_cast<std::uint64_t>(i);
      if (std::count(c.ended.begin(), c.ended.end(), id) + std::count(c.silent.begin(), c.silent.end(), id) == 0)
        ends(id, {}, 2);
    }
    EXPECT_EQ(started.at(1).round.number == 1, c.goes_on);
    ASSERT_EQ(!stepped_down, c.goes_on);
    EXPECT_TRUE(finished.empty()) << "others may go on with it";
    if (c.goes_on) continue;
    EXPECT_TRUE(membership->is_finished());
    EXPECT_THAT(*stepped_down, HasSubstr(std::to_string(c.silent.size()) + " nodes of round 0 fell silent"));
  }
}

TEST_F(Job, AMembershipOutsideTheJobGoesOnWithWhoeverReachesIt) {
  greater_part_only = false;
  begin(1, 3);
  join(1, "a");
  join(2, "b");
  join(3, "c");
  falls_silent(1);
  falls_silent(2);
  ends(3, {}, 2);
  EXPECT_EQ(started.at(3).round.number, 1u);
}

class HostThatSlept : public Job {
 protected:
  void three_nodes_run_and_the_host_sleeps(std::chrono::milliseconds time) {
    begin(1, 3);
    for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
    pass(1min);
    sleep(time);
  }
  void others_do_not_come_again() {
    disconnects(2);
    disconnects(3);
    pass(1s);
    ends(1, {}, 2);
  }
};

TEST_F(HostThatSlept, TakesConnectionsThatWereClosedMeanwhileForSilent) {
  three_nodes_run_and_the_host_sleeps(1600ms);
  others_do_not_come_again();
  ASSERT_TRUE(stepped_down) << "they may have gone on with another host, and have ended since";
  EXPECT_THAT(*stepped_down, HasSubstr("2 nodes of round 0 fell silent"));
}

TEST_F(HostThatSlept, NoticesWhateverItHearsFirst) {
  begin(1, 3);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  now += 1600ms;
  others_do_not_come_again();
  EXPECT_TRUE(stepped_down);
}

TEST_F(HostThatSlept, GoesOnAfterAShortNap) {
  three_nodes_run_and_the_host_sleeps(1400ms);
  others_do_not_come_again();
  EXPECT_FALSE(stepped_down);
  EXPECT_EQ(started.at(1).group_world_size, 1);
}

TEST_F(HostThatSlept, BelievesAGuardian) {
  three_nodes_run_and_the_host_sleeps(10s);
  hear(membership->step(NodeEnded{"key-2"}, now));
  hear(membership->step(NodeEnded{"key-3"}, now));
  ends(1, {}, 2);
  EXPECT_EQ(started.at(1).group_world_size, 1);
}

TEST_F(HostThatSlept, BelievesAClosedConnectionAgainOnceTheOthersAreKnownToBeThere) {
  three_nodes_run_and_the_host_sleeps(10s);
  pass(8s);
  others_do_not_come_again();
  EXPECT_EQ(started.at(1).group_world_size, 1);
}

TEST_F(HostThatSlept, OutsideOfTheJobIsNoHostThatOthersLeave) {
  greater_part_only = false;
  three_nodes_run_and_the_host_sleeps(10s);
  others_do_not_come_again();
  EXPECT_EQ(started.at(1).group_world_size, 1);
}

TEST_F(Job, NodesThatFallSilentAfterTheirRoundHasEndedMayGoOnElsewhere) {
  begin(4, 4, 1);
  for (const std::uint64_t id : {1u, 2u, 3u, 4u}) join(id, "h" + std::to_string(id), {}, id == 1);
  leaves(4);
  for (const std::uint64_t id : {1u, 2u, 3u}) ends(id, {}, 2);
  falls_silent(2);
  EXPECT_FALSE(stepped_down);
  falls_silent(3);
  EXPECT_THAT(*stepped_down, HasSubstr("2 nodes of round 0"));
}

TEST_F(Job, ASilentNodeOfWhichAFarewellComesBlocksNothing) {
  begin(1, 3);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  falls_silent(2);
  falls_silent(3);
  EXPECT_TRUE(membership->knows("key-3"));
  EXPECT_FALSE(membership->knows("key-4"));
  hear(membership->step(NodeEnded{"key-3"}, now));
  ends(1, {}, 2);
  EXPECT_FALSE(stepped_down);
  EXPECT_EQ(started.at(1).round.number, 1u);
}

TEST_F(Job, WhoComesBackFromSilenceCountsAgain) {
  begin(1, 3);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  falls_silent(2);
  falls_silent(3);
  comes_again(2, 12, held_by(2));
  ASSERT_EQ(stopped.count(12), 1u) << "it ends its workers first";
  EXPECT_FALSE(stopped.at(12).front().reseat);
  ends(1, {}, 2);
  EXPECT_FALSE(stepped_down);
  ASSERT_EQ(started.at(1).round.number, 1u);
  EXPECT_EQ(started.count(12), 0u);
  says(12, RoundEnded{0, {}, 2, false});
  pass(10s);
  ends(1, {}, 2);
  EXPECT_EQ(group_ranks({1, 12}), (std::vector<int>{0, 1}));
}

TEST_F(Job, WhileARoundIsNotEstablishedThatBeforeItCountsToo) {
  begin(2, 6, 3);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  pass(10s);
  for (const std::uint64_t id : {1u, 2u}) says(id, RoundStarted{0});
  EXPECT_TRUE(established.empty());
  says(3, RoundStarted{0});
  EXPECT_EQ(established.size(), 3u);
  for (const std::uint64_t id : {4u, 5u, 6u}) join(id, "h" + std::to_string(id));
  pass(10s);
  for (const std::uint64_t id : {1u, 2u, 3u}) ends(id, {}, 2);
  ASSERT_EQ(started.at(6).round.number, 1u);
  falls_silent(2);
  falls_silent(3);  // they may not have heard of round 1, and be the greater part of round 0
  for (const std::uint64_t id : {1u, 4u, 5u, 6u}) ends(id, {}, 2);
  EXPECT_TRUE(stepped_down);
}

TEST_F(Job, NodesThatFallSilentBeforeTheirRoundBeginsBlockNothing) {
  begin(1, 3);
  stores_open = false;
  join(1, "a", {}, true);
  join(2, "b");
  join(3, "c");
  falls_silent(2);
  falls_silent(3);
  EXPECT_TRUE(finished.empty());
}

}  // namespace
}  // namespace ddp::rendezvous
