// A ddprun says that nodes on its host have ended, as the kernel there has told it.
#include "membership_job.hpp"

namespace ddp::rendezvous {
namespace {

class EndedNodes : public Job {
 protected:
  // Nodes 1 to 3, which have all started round 0. Node 1 has the endpoint.
  void begin_with_three() {
    more_options.holds_endpoint = true;
    begin(1, 3, 1);
    for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
    for (const std::uint64_t id : {1u, 2u, 3u}) says(id, RoundStarted{0});
    for (const std::uint64_t id : {1u, 2u, 3u}) {
      held[id] = held_by(id);
      held[id].is_established = true;
    }
  }
  // Another membership, which knows nothing, is there in place of the one before.
  void begin_anew() {
    begin(1, 3, 1);
    now += 1s;
    started.clear();
    stopped.clear();
  }
  EndedNode end_of(std::uint64_t id) const {
    const auto& its = held.at(id);
    return {"key-" + std::to_string(id), its.round, its.group_rank, its.group_world_size, its.nonces.front()};
  }
  void join_with(std::vector<EndedNode> ended, std::uint64_t id, bool is_host = false) {
    hello.ended_nodes = std::move(ended);
    join(id, "h" + std::to_string(id), {}, is_host);
    hello.ended_nodes.clear();
  }

  std::map<std::uint64_t, Held> held;
};

TEST_F(EndedNodes, ProofLetsTheOneThatIsLeftGoOn) {
  begin_with_three();
  for (const std::uint64_t id : {2u, 3u}) falls_silent(id);
  says(1, RoundEnded{0, {}, 2, false});
  started.clear();
  hear(membership->tick(now));
  EXPECT_TRUE(started.empty()) << "nodes 2 and 3 may go on";
  join_with({end_of(2)}, 12);
  EXPECT_EQ(group_ranks({1, 12}), (std::vector<int>{0, 1})) << "of node 1 and 3 the first one is the greater part";
}

TEST_F(EndedNodes, ProofEndsANodeThatNobodyHasMissedYet) {
  begin_with_three();
  join_with({end_of(2)}, 12);
  ASSERT_EQ(stopped.count(1), 1u);
  EXPECT_THAT(stopped.at(1).front().why.value(), HasSubstr("its ddprun ended"));
}

TEST_F(EndedNodes, ProofOfANodeThatHadGoneOnToALaterRoundSaysNothingOfThatRoundsOthers) {
  begin_with_three();
  for (const std::uint64_t id : {2u, 3u}) falls_silent(id);
  says(1, RoundEnded{0, {}, 2, false});
  started.clear();
  auto in_later_round = end_of(2);
  in_later_round.round.number = 1;
  join_with({in_later_round}, 12);
  EXPECT_TRUE(started.empty()) << "node 3 may go on with that round";
}

TEST_F(EndedNodes, NeitherKeyNorRoundNorNonceOfOthersProvesAnything) {
  begin_with_three();
  for (const std::uint64_t id : {2u, 3u}) falls_silent(id);
  says(1, RoundEnded{0, {}, 2, false});
  started.clear();
  auto of_other_node = end_of(3);
  of_other_node.node_key = "key-9";
  join_with({of_other_node}, 12);
  EXPECT_TRUE(started.empty());
}

TEST_F(EndedNodes, SurvivorIsBelievedAfterASecondWhoeverComesFirst) {
  for (const bool survivor_is_first : {true, false}) {
    SCOPED_TRACE(survivor_is_first);
    begin_with_three();
    begin_anew();
    if (survivor_is_first) comes_again(3, 23, held.at(3));
    join_with({end_of(1)}, 11, true);
    join_with({end_of(2)}, 12);
    if (!survivor_is_first) comes_again(3, 23, held.at(3));
    pass(999ms);
    EXPECT_EQ(stopped.count(23), 0u);
    pass(1ms);
    ASSERT_EQ(stopped.count(23), 1u);
    says(23, RoundEnded{0, {}, 2, false});
    EXPECT_EQ(group_ranks({23, 11, 12}), (std::vector<int>{2, 0, 1}));
    EXPECT_EQ(started.at(23).round.number, 1u);
    EXPECT_FALSE(stepped_down);
  }
}

TEST_F(EndedNodes, AnotherNonceSettlesNoClaim) {
  begin_with_three();
  begin_anew();
  auto stranger = end_of(2);
  stranger.nonce = "made-up";
  comes_again(3, 23, held.at(3));
  join_with({end_of(1), stranger}, 11, true);
  pass(5999ms);
  EXPECT_EQ(stopped.count(23), 0u) << "node 2 may go on without it";
}

TEST_F(EndedNodes, NodeThatBringsProofAndARoundEndsItsRoundFirst) {
  begin_with_three();
  for (const std::uint64_t id : {2u, 3u}) falls_silent(id);
  says(1, RoundEnded{0, {}, 2, false});
  started.clear();
  hello.ended_nodes = {end_of(2)};
  comes_again(3, 13, held.at(3));
  EXPECT_TRUE(started.empty());
  says(13, RoundEnded{0, {}, 2, false});
  EXPECT_EQ(group_ranks({1, 13}), (std::vector<int>{0, 1}));
}

// The first host is lost, and the second, which serves in its place, waits for the third.
TEST_F(EndedNodes, ProofSettlesMembersThatAreAwaited) {
  for (const bool is_of_round : {true, false}) {
    SCOPED_TRACE(is_of_round);
    more_options = {};
    begin_with_three();
    more_options.holds_endpoint = false;
    more_options.lost.group_rank = 0;
    begin_anew();
    comes_again(2, 0, held.at(2));
    auto first = end_of(1), third = end_of(3);
    if (!is_of_round) first.round.number = 7;
    join_with({first}, 11);
    join_with({third}, 13);
    pass(6s);
    ASSERT_EQ(stopped.count(0), is_of_round ? 1u : 0u);
    if (!is_of_round) continue;
    says(0, RoundEnded{0, {}, 2, false});
    EXPECT_EQ(group_ranks({0, 11, 13}), (std::vector<int>{1, 0, 2}));
    EXPECT_FALSE(stepped_down);
  }
}

// The next host was left behind in round 0, and serves where its host is gone: it hears of round 1 from another one.
TEST_F(EndedNodes, ProofOfTheLostHostCountsInTheLaterRoundThatIsAdopted) {
  begin_with_three();
  auto later = held.at(3);
  later.round.number = 1;
  later.nonces.insert(later.nonces.begin(), "nonce-1");
  more_options.holds_endpoint = false;
  more_options.lost.group_rank = 0;
  more_options.lost.node_key = "key-1";
  more_options.lost.round = held.at(1).round;
  begin_anew();
  join(2, "h2");
  comes_again(3, 23, later);
  auto first = end_of(1), second = end_of(2);
  for (auto* its : {&first, &second}) its->round = later.round, its->nonce = "nonce-1";
  join_with({first, second}, 11);
  pass(1s);
  ASSERT_EQ(stopped.count(23), 1u) << "of round 1 nobody else is left";
  EXPECT_EQ(stopped.at(23).front().round, 1u);
}

// Of an earlier job with the same run id, maybe: its nodes need not be awaited.
TEST_F(EndedNodes, FirstRoundWaitsForNobody) {
  begin_with_three();
  begin_anew();
  join(9, "h9", {}, true);
  for (const std::uint64_t id : {1u, 2u}) join_with({end_of(id)}, 10 + id);
  EXPECT_EQ(started.size(), 3u);
}

}  // namespace
}  // namespace ddp::rendezvous
