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

// Workers that live on keep what they have committed. Newcomers would begin with nothing.
TEST_F(Job, NewcomersAloneWaitForTheNodesThatAllFellSilent) {
  for (const bool comes_back : {true, false}) {
    SCOPED_TRACE(comes_back);
    greater_part_only = false;
    started.clear();
    begin(1, 3, 3);
    for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id));
    ASSERT_EQ(started.size(), 3u);
    for (const std::uint64_t id : {1u, 2u, 3u}) says(id, RoundStarted{0});
    const auto held = held_by(1);
    for (const std::uint64_t id : {1u, 2u, 3u}) falls_silent(id);
    started.clear();
    join(4, "d");
    join(5, "e");
    EXPECT_TRUE(started.empty());
    EXPECT_THAT(said.back(), HasSubstr("all nodes of the last round fell silent"));
    if (comes_back) {
      comes_again(1, 11, held);
      says(11, RoundEnded{held.round.number, {}, 2, false});
      pass(1s);  // for others that come back too
      EXPECT_EQ(started.count(11), 1u);
      continue;
    }
    pass(58s);
    EXPECT_TRUE(started.empty());
    pass(2s);
    EXPECT_EQ(started.count(4) + started.count(5), 2u);
  }
}

// Three nodes run, and the connections of two of them end.
class ClosedConnections : public Job {
 protected:
  void two_of_three_close() {
    begin(1, 3);
    for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
    disconnects(2);
    disconnects(3);
    pass(1s);
  }
};

TEST_F(ClosedConnections, ProveNoEnd) {
  two_of_three_close();
  ends(1, {}, 2);
  ASSERT_TRUE(stepped_down) << "they may have gone on with another host";
  EXPECT_THAT(*stepped_down, HasSubstr("2 nodes of round 0 fell silent"));
}

TEST_F(ClosedConnections, WithTheWordOfAGuardianAreAnEnd) {
  two_of_three_close();
  hear(membership->step(NodeEnded{"key-2"}, now));
  hear(membership->step(NodeEnded{"key-3"}, now));
  ends(1, {}, 2);
  EXPECT_EQ(started.at(1).group_world_size, 1);
}

TEST_F(ClosedConnections, AreEnoughWhereMembershipIsNoPartOfTheJob) {
  greater_part_only = false;
  two_of_three_close();
  ends(1, {}, 2);
  EXPECT_EQ(started.at(1).group_world_size, 1);
}

// The endpoint's node, where the others may go on without it.
class HolderOfTheEndpoint : public Job {
 protected:
  void SetUp() override { more_options.holds_endpoint = true; }
  void begin_round(int nodes_min, int nodes_max) {
    begin(nodes_min, nodes_max, 3);
    for (int i = 1; i <= nodes_max; ++i) join(static_cast<std::uint64_t>(i), "h" + std::to_string(i), {}, i == 1);
    ASSERT_EQ(started.at(1).round.number, 0u);
    for (int i = 1; i <= nodes_max; ++i) says(static_cast<std::uint64_t>(i), RoundStarted{0});
  }
};

TEST_F(HolderOfTheEndpoint, WaitsForTheOthersAndSaysWhy) {
  begin_round(1, 3);
  falls_silent(2);
  falls_silent(3);
  ends(1, {}, 2);
  EXPECT_FALSE(stepped_down);
  EXPECT_EQ(started.at(1).round.number, 0u);
  EXPECT_THAT(said.back(), HasSubstr("2 nodes of round 0 fell silent"));
  auto caller = hello;
  EXPECT_EQ(membership->aside_for(caller), Membership::Aside::no) << "the job does not go on there, as far as is known";
  caller.held = held_by(2);
  EXPECT_EQ(membership->aside_for(caller), Membership::Aside::joins);
  comes_again(2, 12, held_by(2));
  says(12, RoundEnded{0, {}, 2, false});
  EXPECT_EQ(started.at(1).round.number, 0u) << "the third may be about to come, too";
  pass(1s);
  EXPECT_EQ(started.at(1).round.number, 1u);
  EXPECT_EQ(membership->aside_for(caller), Membership::Aside::no);
  for (const bool has_been_here : {true, false}) {
    caller.held = held_by(1);
    caller.held->group_rank = 2;
    caller.held->round.number = 2;
    caller.goes_on = true;
    if (!has_been_here) caller.held->nonces = {"of a round elsewhere"};
    EXPECT_EQ(membership->aside_for(caller) == Membership::Aside::gives_up_round, has_been_here)
        << "without a token anybody may say that";
  }
}

// The others have adopted its round, and are too few themselves.
TEST_F(HolderOfTheEndpoint, OfAFixedNumberJoinsThoseThatWaitToo) {
  begin_round(3, 3);
  falls_silent(2);
  falls_silent(3);
  ends(1, {}, 2);
  auto caller = hello;
  caller.held = held_by(2);
  EXPECT_EQ(membership->aside_for(caller), Membership::Aside::joins);
  caller.held->nonces = {"made up"};
  EXPECT_EQ(membership->aside_for(caller), Membership::Aside::no);
  caller.held = held_by(1);
  EXPECT_EQ(membership->aside_for(caller), Membership::Aside::no) << "its own call";
}

TEST_F(HolderOfTheEndpoint, ThatHasBegunTheJobOnceMoreGivesWayToWhoKnowsItsToken) {
  more_options.has_token = true;
  hello.started = 1000;
  begin_round(1, 2);
  auto caller = hello;
  caller.held = Held{{1600000000, 1, 7}, 0, 2, 0, true, false, {"of a round elsewhere"}};
  caller.held->job_started = 1001;
  caller.goes_on = true;
  EXPECT_EQ(membership->aside_for(caller), Membership::Aside::no) << "that job began later";
  caller.held->job_started = 999;
  caller.goes_on = false;
  EXPECT_EQ(membership->aside_for(caller), Membership::Aside::no) << "it is not decided whether that job goes on";
  caller.goes_on = true;
  ASSERT_EQ(membership->aside_for(caller), Membership::Aside::gives_up_round);
  caller.held->job_started = 1000;
  EXPECT_EQ(membership->aside_for(caller), Membership::Aside::no) << "in the same second, and its round is older";
  caller.held->round = {4000000000, 1, 1};
  ASSERT_EQ(membership->aside_for(caller), Membership::Aside::gives_up_round);
  hear(membership->give_up_round());
  EXPECT_EQ(stopped.count(1), 0u) << "its own agent is told otherwise";
  ASSERT_EQ(stopped.count(2), 1u);
  EXPECT_TRUE(stopped.at(2).front().is_left_behind);
}

TEST_F(HolderOfTheEndpoint, EndsTheJobWhereNobodyComesBack) {
  begin_round(1, 3);
  falls_silent(2);
  falls_silent(3);
  ends(1, {}, 2);
  pass(61s);
  ASSERT_EQ(finished.count(1), 1u);
  EXPECT_EQ(finished.at(1).exit_code, exit_code_of(outcome::NotTogether{}));
  EXPECT_THAT(*finished.at(1).what, HasSubstr("none of them came back within 60 s"));
}

TEST_F(HolderOfTheEndpoint, NeedsNoGreaterPartOfAFixedNumberThatIsThere) {
  begin_round(3, 3);
  falls_silent(2);
  falls_silent(3);
  ends(1, {}, 2);
  join(4, "h4");
  EXPECT_EQ(started.at(1).round.number, 0u);
  join(5, "h5");
  EXPECT_EQ(group_ranks({1, 4, 5}), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(started.at(1).round.number, 1u);
}

TEST_F(HolderOfTheEndpoint, WaitsWhereAllMembersOfAFixedNumberAreSilent) {
  begin(1, 1, 3);
  join(2, "h2");
  join(1, "h1", {}, true);  // a spare
  says(2, RoundStarted{0});
  falls_silent(2);
  EXPECT_EQ(started.count(1), 0u) << "the member may work on";
  hear(membership->step(NodeEnded{"key-2"}, now));
  ASSERT_EQ(started.count(1), 1u);
}

TEST_F(HolderOfTheEndpoint, NeedsNoGreaterPartWhereTheOthersAreTooFewWithoutNewcomers) {
  for (const bool is_address_own : {false, true}) {
    more_options.endpoint_address = is_address_own ? "10.0.0.1" : "";
    started.clear();
    begin_round(4, 5);
    for (const std::uint64_t id : {3u, 4u, 5u}) falls_silent(id);
    for (const std::uint64_t id : {1u, 2u}) ends(id, {}, 2);
    join(6, "h6");
    join(7, "h7");
    EXPECT_EQ(started.at(1).round.number, is_address_own ? 1u : 0u) << "a name may lead newcomers elsewhere";
  }
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
  ASSERT_EQ(stopped.count(12), 1u) << "it ends its round first";
  EXPECT_TRUE(stopped.at(12).front().reseat) << "its workers may have kept what no other has";
  ends(1, {}, 2);
  EXPECT_FALSE(stepped_down);
  pass(999ms);
  ASSERT_EQ(started.at(1).round.number, 0u);
  says(12, RoundEnded{0, {}, 2, false});
  pass(1ms);
  ASSERT_EQ(started.at(1).round.number, 1u);
  EXPECT_EQ(group_ranks({1, 12}), (std::vector<int>{0, 1}));
}

TEST_F(Job, WhoComesBackFromSilenceIsAwaitedAlsoIfItsConnectionBreaksOnceMore) {
  begin(1, 3);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  auto held = held_by(2);
  falls_silent(2);
  for (const std::uint64_t id : {1u, 3u}) ends(id, {}, 2);
  ASSERT_EQ(started.at(1).round.number, 1u);
  falls_silent(3);
  comes_again(2, 12, held);
  disconnects(12);
  held.is_left_behind = true;  // as it was told
  comes_again(2, 22, held);
  ends(1, {}, 2);
  pass(500ms);
  EXPECT_EQ(started.at(1).round.number, 1u);
  says(22, RoundEnded{0, {}, 2, false});
  pass(500ms);
  EXPECT_EQ(group_ranks({1, 22}), (std::vector<int>{0, 1}));
}

TEST_F(Job, AfterAPauseOfItsOwnItHearsWhatCameMeanwhileBeforeARoundBegins) {
  for (const bool is_gone : {false, true}) {
    SCOPED_TRACE(is_gone);
    started.clear();
    begin(2, 2, 3);
    for (const std::uint64_t id : {1u, 2u}) join(id, "h" + std::to_string(id), {}, id == 1);
    auto at_once = failure(0, exited(1));
    at_once.after = 1s;
    ends(1, {at_once}, 1);
    ends(2, {}, 2);
    sleep(3s);  // the restart's pause is over
    EXPECT_EQ(started.at(1).round.number, 0u);
    if (is_gone) disconnects(2);
    pass(50ms);
    EXPECT_EQ(started.at(1).round.number, is_gone ? 0u : 1u);
  }
}

TEST_F(Job, WhoComesBackFromSilenceIsAwaitedForASecond) {
  begin(1, 3);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  const auto held = held_by(2);
  falls_silent(2);
  for (const std::uint64_t id : {1u, 3u}) ends(id, {}, 2);
  ASSERT_EQ(started.at(1).round.number, 1u);
  falls_silent(3);
  comes_again(2, 12, held);  // with the round before the last one, which node 3 may not have had for long
  ends(1, {}, 2);
  pass(999ms);
  EXPECT_EQ(started.at(1).round.number, 1u);
  pass(1ms);
  EXPECT_EQ(started.at(1).round.number, 2u);
  EXPECT_EQ(started.count(12), 0u);
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
