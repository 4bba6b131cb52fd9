// Nodes claim to have rounds that they never had.
#include "membership_job.hpp"

namespace ddp::rendezvous {
namespace {

class MembershipClaims : public Job {
 protected:
  // Nodes 1 to `count`, which have all started round 0. Node 1 has the endpoint, unless a daemon serves it.
  void begin_with(int count, int nodes_max, int restarts_max = 1) {
    begin(count, nodes_max, restarts_max);
    for (int i = 1; i <= count; ++i)
      join(static_cast<std::uint64_t>(i), "h" + std::to_string(i), {}, greater_part_only && i == 1);
    if (count < nodes_max) pass(10s);
    for (int i = 1; i <= count; ++i) says(static_cast<std::uint64_t>(i), RoundStarted{0});
    ASSERT_EQ(established.size(), static_cast<std::size_t>(count));
    for (int i = 1; i <= count; ++i) {
      held[i] = held_by(static_cast<std::uint64_t>(i));
      held[i].is_established = true;
    }
  }
  // Another membership, which knows nothing, is there in place of the one before.
  void begin_anew(int nodes_min, int nodes_max, int restarts_max = 1) {
    begin(nodes_min, nodes_max, restarts_max);
    now += 1s;
    started.clear();
    stopped.clear();
    said.clear();
  }
  static Held a_lie(int group_world_size, const std::string& nonce = "made-up") {
    return {{4'000'000'000, 1, 7}, 0, group_world_size, 1000, true, false, {nonce}};
  }
  void expect_refused(std::uint64_t id) {
    ASSERT_EQ(refused.count(id), 1u);
    EXPECT_TRUE(refused.at(id).is_round_unknown);
    EXPECT_FALSE(refused.at(id).is_other_job);
  }
  // The round 0 of `count` nodes goes on as if nothing had been, and a failure costs the first restart.
  void expect_undisturbed(const std::vector<std::uint64_t>& ids) {
    EXPECT_FALSE(stepped_down) << *stepped_down;
    EXPECT_TRUE(finished.empty());
    EXPECT_EQ(membership->view().phase, "running");
    EXPECT_EQ(membership->view().round, 0);
    EXPECT_EQ(membership->view().restart_count, 0);
    for (const auto id : ids) EXPECT_EQ(stopped.count(id), 0u) << id;
    for (const auto id : ids) says(id, RoundEnded{0, {failure(static_cast<int>(id), exited(1))}, 1, false});
    for (const auto id : ids) {
      ASSERT_EQ(started.count(id), 1u);
      EXPECT_EQ(started.at(id).restart_count, 1);
      EXPECT_EQ(started.at(id).round.number, 1u);
      EXPECT_LT(started.at(id).round.term, 4'000'000'000u);
    }
  }

  std::map<int, Held> held;
};

// --- the greater part of a round is here ---

TEST_F(MembershipClaims, AStrangersNewerRoundEndsNothing) {
  for (const bool is_daemon : {false, true}) {
    SCOPED_TRACE(is_daemon);
    greater_part_only = !is_daemon;
    established.clear();
    begin_with(3, 3);
    comes_again(9, 9, a_lie(3));
    expect_refused(9);
    EXPECT_THAT(said.back(), AllOf(HasSubstr("host h9 (10.0.0.9)"), HasSubstr("round 7"), HasSubstr("does not count")));
    for (const auto& line : said) EXPECT_THAT(line, Not(HasSubstr("nonce-")));
    started.clear();
    stopped.clear();
    expect_undisturbed({1, 2, 3});
  }
}

TEST_F(MembershipClaims, ASparesNewerRoundEndsNothingEither) {
  begin_with(3, 3);
  join(9, "h9");
  comes_again(9, 19, a_lie(3));
  expect_refused(19);
  started.clear();
  expect_undisturbed({1, 2, 3});
}

TEST_F(MembershipClaims, AMembersNewerRoundIsItsOwnLossAlone) {
  greater_part_only = false;
  begin(2, 3, 1);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id));
  for (const std::uint64_t id : {1u, 2u, 3u}) says(id, RoundStarted{0});
  auto lie = a_lie(3);
  lie.nonces.push_back(held_by(3).nonces.front());
  comes_again(3, 13, lie);
  expect_refused(13);
  EXPECT_FALSE(stepped_down);
  for (const std::uint64_t id : {1u, 2u}) ends(id, {}, 2);
  EXPECT_EQ(group_ranks({1, 2}), (std::vector<int>{0, 1}));
  EXPECT_EQ(started.at(1).restart_count, 0) << "as at the loss of any node";
}

TEST_F(MembershipClaims, LiesAreNamedOnceAMinute) {
  begin_with(3, 3);
  const auto lines = said.size();
  for (std::uint64_t id = 10; id < 60; ++id) comes_again(id, id, a_lie(3));
  EXPECT_EQ(said.size(), lines + 1);
  pass(1min);
  comes_again(60, 60, a_lie(3));
  EXPECT_EQ(said.size(), lines + 2);
  EXPECT_THAT(said.back(), HasSubstr("49 claims before it"));
}

TEST_F(MembershipClaims, ACopiedRoundIdWithoutItsNonceGetsNoPlace) {
  greater_part_only = false;
  begin_with(4, 4);
  begin_anew(4, 4);
  for (const std::uint64_t id : {1u, 2u, 3u}) comes_again(id, 10 + id, held[static_cast<int>(id)]);
  auto copy = held[4];
  copy.nonces = {"made-up"};
  comes_again(9, 9, copy);
  expect_refused(9);
  comes_again(4, 14, held[4]);
  EXPECT_EQ(refused.count(14), 0u);
  EXPECT_EQ(membership->view().nodes.size(), 4u);
  expect_undisturbed({11, 12, 13, 14});
}

TEST_F(MembershipClaims, WhoSaysThatItWasLeftBehindSpeaksForItselfAlone) {
  greater_part_only = false;
  begin_with(3, 3);
  begin_anew(3, 3);
  auto behind = held[2];
  behind.is_left_behind = true;
  behind.restart_count = 1000;
  comes_again(9, 9, behind);
  for (const std::uint64_t id : {1u, 2u, 3u}) comes_again(id, 10 + id, held[static_cast<int>(id)]);
  EXPECT_EQ(stopped.at(9).size(), 1u);
  expect_undisturbed({11, 12, 13});
}

TEST_F(MembershipClaims, ANodeThatNobodyBearsOutTakesPartAgainBetweenTwoRounds) {
  begin_with(2, 2);
  const auto lost = held[2];
  falls_silent(2);
  ends(1, {}, 2);
  ASSERT_EQ(membership->view().phase, "waiting for nodes");
  auto newer = lost;
  ++newer.round.number;
  newer.nonces = {"of a round that never began here"};
  comes_again(3, 13, newer);
  ASSERT_EQ(stopped.count(13), 1u);
  says(13, RoundEnded{1, {}, 2, false});
  EXPECT_EQ(group_ranks({1, 13}), (std::vector<int>{0, 1}));
}

// --- nothing is known here ---

TEST_F(MembershipClaims, ALoneClaimNeverDisplacesASet) {
  for (const int liars : {1, 5}) {
    SCOPED_TRACE(liars);
    greater_part_only = false;
    established.clear();
    begin_with(3, 8);
    begin_anew(3, 8);
    for (int i = 0; i < liars; ++i)
      comes_again(20 + static_cast<std::uint64_t>(i), 20 + static_cast<std::uint64_t>(i),
                  a_lie(8, "made-up-" + std::to_string(i)));
    comes_again(1, 11, held[1]);
    EXPECT_EQ(membership->view().round, -1) << "of equal ones nobody knows yet";
    comes_again(2, 12, held[2]);
    EXPECT_EQ(membership->view().round, 0);
    comes_again(3, 13, held[3]);
    for (int i = 0; i < liars; ++i) expect_refused(20 + static_cast<std::uint64_t>(i));
    expect_undisturbed({11, 12, 13});
    refused.clear();
  }
}

TEST_F(MembershipClaims, NodesOfARoundWithoutNoncesGoOnWhenTheWaitIsOver) {
  greater_part_only = false;
  begin_with(3, 3);
  begin_anew(3, 3);
  for (const int i : {1, 2, 3}) {
    held[i].nonces.clear();  // an older membership began the round
    comes_again(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(i + 10), held[i]);
  }
  EXPECT_EQ(membership->view().round, -1) << "others may come that prove what they say";
  pass(7s);
  expect_undisturbed({11, 12, 13});
}

TEST_F(MembershipClaims, ClaimsWithoutNoncesNeverDisplaceThoseWithNonces) {
  greater_part_only = false;
  begin_with(3, 3);
  begin_anew(3, 3);
  for (std::uint64_t id = 21; id <= 24; ++id) {
    auto lie = a_lie(3);
    lie.nonces.clear();
    comes_again(id, id, lie);
  }
  for (const int i : {1, 2, 3}) comes_again(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(i + 10), held[i]);
  expect_undisturbed({11, 12, 13});
  for (std::uint64_t id = 21; id <= 24; ++id) expect_refused(id);
}

TEST_F(MembershipClaims, NodeThatIsTooOldToProveItsRoundIsToBeUpgraded) {
  greater_part_only = false;
  begin_with(3, 3);
  begin_anew(3, 3);
  held[3].nonces.clear();
  for (const int i : {1, 2, 3}) comes_again(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(i + 10), held[i]);
  expect_refused(13);
  EXPECT_THAT(refused.at(13).what, HasSubstr("ddprun on host h3 is too old"));
  EXPECT_THAT(refused.at(13).try_this, HasSubstr("upgrade ddprun on host h3"));
}

TEST_F(MembershipClaims, ALieAboutARoundOfOneNodeIsNoGreaterPartAtOnce) {
  greater_part_only = false;
  begin(1, 3, 1);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id));
  for (const std::uint64_t id : {1u, 2u, 3u}) says(id, RoundStarted{0});
  for (const int i : {1, 2, 3}) held[i] = held_by(static_cast<std::uint64_t>(i)), held[i].is_established = true;
  begin_anew(1, 3);
  comes_again(9, 9, a_lie(1));
  pass(5s);
  for (const std::uint64_t id : {1u, 2u, 3u}) comes_again(id, 10 + id, held[static_cast<int>(id)]);
  expect_refused(9);
  expect_undisturbed({11, 12, 13});
}

TEST_F(MembershipClaims, OfTwoThatStandAloneTheNewerIsBelieved) {
  greater_part_only = false;
  begin(1, 3, 1);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id));
  const auto older = held_by(1);
  begin_anew(1, 3);
  comes_again(9, 9, a_lie(1));
  comes_again(1, 11, older);
  pass(6999ms);
  EXPECT_EQ(membership->view().round, -1);
  EXPECT_TRUE(stopped.empty());
  pass(1ms);
  EXPECT_EQ(membership->view().round, 7) << "a lone survivor can't be told from a liar";
}

TEST_F(MembershipClaims, ALoneSurvivorIsBelievedWhenTheWaitIsOver) {
  greater_part_only = false;
  begin(1, 3, 1);
  join(1, "h1");
  pass(10s);
  says(1, RoundStarted{0});
  auto alone = held_by(1);
  alone.is_established = true;
  begin_anew(1, 3);
  comes_again(1, 11, alone);
  says(11, RoundEnded{0, {failure(0, exited(1))}, 1, false});
  EXPECT_TRUE(started.empty());
  pass(7s);
  ASSERT_EQ(started.count(11), 1u);
  EXPECT_EQ(started.at(11).restart_count, 1) << "what it said before it was believed counts";
}

// Node 1 had the endpoint, at an address that is now that of another ddprun.
TEST_F(MembershipClaims, WhoeverHadTheEndpointBeforeHasEnded) {
  for (const bool is_the_same_address : {true, false}) {
    SCOPED_TRACE(is_the_same_address);
    more_options = {};
    begin_with(2, 2, 3);
    auto survivor = held_by(2);
    survivor.is_established = true;
    survivor.host_group_rank = 0;
    survivor.endpoint_address = "10.0.0.1";
    more_options.holds_endpoint = true;
    more_options.endpoint_address = is_the_same_address ? "10.0.0.1" : "10.0.0.9";
    begin_anew(2, 2, 3);
    join(7, "h1", {}, true);
    comes_again(2, 12, survivor);
    EXPECT_EQ(stopped.count(12), 0u);
    pass(1s);
    ASSERT_EQ(stopped.count(12), is_the_same_address ? 1u : 0u) << "it may still run, elsewhere";
    pass(7s);
    ASSERT_EQ(stopped.count(12), 1u) << "both nodes of the job are here";
    says(12, RoundEnded{0, {}, 2, false});
    ASSERT_EQ(started.count(7), 1u);
    EXPECT_EQ(started.at(7).round.number, 1u);
    EXPECT_EQ(started.at(12).group_rank, 1);
    EXPECT_FALSE(stepped_down);
  }
}

// Also where the last one that has the round is silent while it is decided whether the round goes on.
TEST_F(MembershipClaims, WhoeverHadTheEndpointBeforeHasEndedThoughTheOnlySurvivorIsCutOffForAWhile) {
  begin_with(3, 3, 3);
  auto survivor = held_by(3);
  survivor.is_established = true;
  survivor.host_group_rank = 0;
  survivor.endpoint_address = "10.0.0.1";
  more_options.holds_endpoint = true;
  more_options.endpoint_address = "10.0.0.1";
  begin_anew(2, 3, 3);
  join(7, "h1", {}, true);
  comes_again(3, 13, survivor);
  join(8, "h2");
  falls_silent(13);
  pass(7s);
  EXPECT_EQ(started.count(7), 0u) << "the survivor may be at work with node 1";
  comes_again(3, 23, survivor);
  ASSERT_EQ(stopped.count(23), 1u);
  says(23, RoundEnded{0, {}, 2, false});
  pass(1s);
  EXPECT_EQ(group_ranks({7, 8, 23}), (std::vector<int>{0, 1, 2})) << "node 1 alone would be too few";
}

TEST_F(MembershipClaims, TheHostsOwnNodeIsBelievedBeforeAllOthers) {
  begin_with(3, 3);
  more_options.lost.group_rank = 0;
  begin_anew(3, 3);
  comes_again(2, 0, held[2]);
  for (const std::uint64_t id : {7u, 8u, 9u}) comes_again(id, id, a_lie(3, "shared"));
  EXPECT_TRUE(stopped.empty());
  comes_again(3, 13, held[3]);
  EXPECT_EQ(membership->view().round, 0);
  for (const std::uint64_t id : {7u, 8u, 9u}) expect_refused(id);
  EXPECT_THAT(stopped.at(13).front().why.value(), HasSubstr("node 0, which had the endpoint, was lost"));
  EXPECT_FALSE(stepped_down);
}

TEST_F(MembershipClaims, NodesThatShareAnOlderRoundBearEachOtherOut) {
  greater_part_only = false;
  begin_with(3, 3, 3);
  for (const std::uint64_t id : {1u, 2u, 3u}) ends(id, {failure(static_cast<int>(id), exited(1))}, 1);
  const Held newest[] = {held_by(2), held_by(3)};
  ASSERT_EQ(newest[0].round.number, 1u);
  begin_anew(3, 3, 3);
  comes_again(1, 11, held[1]);  // missed the newest round
  comes_again(9, 9, a_lie(3));
  comes_again(2, 12, newest[0]);
  EXPECT_EQ(membership->view().round, -1);
  comes_again(3, 13, newest[1]);
  EXPECT_EQ(membership->view().round, 1);
  expect_refused(9);
  EXPECT_EQ(stopped.count(12) + stopped.count(13), 0u);
  EXPECT_TRUE(stopped.at(11).front().is_left_behind);
}

// The daemon was killed while it told the nodes to start round 1.
TEST_F(MembershipClaims, ARoundThatReachedFewOfItsNodesIsNotGoneOnWith) {
  greater_part_only = false;
  begin_with(5, 5, 5);
  auto newest = held[1];
  newest.round.number = 1;
  newest.is_established = false;
  newest.nonces.insert(newest.nonces.begin(), "nonce of round 1");
  begin_anew(5, 5, 5);
  comes_again(1, 11, newest);
  for (int i = 2; i <= 5; ++i) comes_again(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(10 + i), held[i]);
  EXPECT_EQ(membership->view().round, 0);
  ASSERT_EQ(stopped.count(11), 1u);
  EXPECT_EQ(stopped.at(11).front().round, 1u);
  says(11, RoundEnded{1, {}, 1, false});
  for (std::uint64_t id = 12; id <= 15; ++id) says(id, RoundEnded{0, {failure(2, exited(1))}, 1, false});
  pass(20s);
  EXPECT_FALSE(stepped_down);
  EXPECT_TRUE(finished.empty());
  for (std::uint64_t id = 11; id <= 15; ++id) EXPECT_EQ(started.count(id), 1u) << id;
}

TEST_F(MembershipClaims, ATermThatNoClockCanHaveIsNone) {
  greater_part_only = false;
  more_options.term_max = 1'731'000'000;
  begin(2, 2);
  auto lie = a_lie(2);
  comes_again(1, 1, lie);
  EXPECT_THAT(refused.at(1).what, HasSubstr("can't be"));
  EXPECT_TRUE(refused.at(1).is_round_unknown);
  lie.round.term = 1'731'000'000;
  comes_again(2, 2, lie);
  EXPECT_EQ(refused.count(2), 0u);
}

TEST_F(MembershipClaims, NothingThatIsSaidMeanwhileHasAnEffect) {
  greater_part_only = false;
  begin_with(3, 3);
  begin_anew(3, 3);
  comes_again(1, 11, held[1]);
  comes_again(9, 9, a_lie(3));
  says(9, RoundFailed{7, "a lie"});
  says(9, RoundEnded{7, {failure(0, kKilled)}, 1, true});
  says(9, StopAsked{SIGTERM});
  hello.was_welcomed = true;
  join(8, "h8");
  says(8, StopAsked{SIGTERM});
  EXPECT_EQ(finished.at(8).exit_code, 128 + SIGTERM) << "a spare leaves";
  finished.clear();
  for (const std::uint64_t id : {2u, 3u}) comes_again(id, 10 + id, held[static_cast<int>(id)]);
  expect_refused(9);
  expect_undisturbed({11, 12, 13});
}

TEST_F(MembershipClaims, WhatAMemberSaidMeanwhileCountsOnceItsRoundIsKnown) {
  greater_part_only = false;
  begin_with(3, 3);
  begin_anew(3, 3);
  comes_again(1, 11, held[1]);
  says(11, RoundFailed{0, "rank 1 was killed"});
  EXPECT_TRUE(stopped.empty());
  comes_again(2, 12, held[2]);
  EXPECT_EQ(stopped.at(12).front().why, "rank 1 was killed");
}

TEST_F(MembershipClaims, AClaimantThatEndsMeanwhileIsNotCounted) {
  greater_part_only = false;
  begin(1, 4, 1);
  for (const std::uint64_t id : {1u, 2u, 3u, 4u}) join(id, "h" + std::to_string(id));
  for (const std::uint64_t id : {1u, 2u, 3u, 4u}) says(id, RoundStarted{0});
  for (const int i : {1, 2, 3, 4}) held[i] = held_by(static_cast<std::uint64_t>(i)), held[i].is_established = true;
  begin_anew(1, 4);
  for (const std::uint64_t id : {3u, 4u}) comes_again(id, 10 + id, held[static_cast<int>(id)]);
  EXPECT_EQ(membership->view().round, -1) << "half of four, without the lowest group rank";
  hear(membership->step(NodeEnded{"key-4"}, now));
  EXPECT_EQ(membership->view().round, -1);
  comes_again(2, 12, held[2]);
  EXPECT_EQ(membership->view().round, 0) << "two of three";
  EXPECT_THAT(stopped.at(12).front().why.value(), HasSubstr("node 3"));
}

TEST_F(MembershipClaims, TheSettingsComeWithTheRoundWhoeverCameFirst) {
  greater_part_only = false;
  begin_with(3, 3);
  const auto honest = hello;
  for (const bool has_claim : {false, true}) {
    SCOPED_TRACE(has_claim);
    begin_anew(2, 4, 0);  // as a daemon that takes them from this node
    if (has_claim)
      comes_again(9, 9, a_lie(4));
    else
      join(9, "h9");
    hello = honest;
    for (const std::uint64_t id : {1u, 2u, 3u}) comes_again(id, 10 + id, held[static_cast<int>(id)]);
    EXPECT_THAT(refused.at(9).what, HasSubstr("the endpoint with --nnodes=3"));
    EXPECT_EQ(refused.count(11) + refused.count(12) + refused.count(13), 0u);
    expect_undisturbed({11, 12, 13});
    refused.clear();
  }
}

TEST_F(MembershipClaims, AnOlderRoundDoesNotUseUpRestarts) {
  more_options.before = {{1'650'000'000, 1, 3}, 1};
  greater_part_only = false;
  begin(2, 2, 2);
  comes_again(1, 1, Held{{1'600'000'000, 1, 2}, 0, 2, 1000, true, false, {"made-up"}});
  EXPECT_EQ(membership->view().restart_count, 1) << "as the daemon knows";
}

TEST_F(MembershipClaims, ARoundOfFewerNodesThanTheJobHasCanNotBe) {
  begin(2, 2);
  comes_again(1, 1, a_lie(1));
  EXPECT_THAT(refused.at(1).what, HasSubstr("can't be"));
}

TEST_F(MembershipClaims, WhatCanNotBeIsNoClaimOfANodeThatComesAgainEither) {
  greater_part_only = false;
  begin(1, 2);
  join(9, "h9");
  auto lie = a_lie(1);
  lie.round.term = ~std::uint64_t{0};
  comes_again(9, 19, lie);
  pass(10s);
  ASSERT_EQ(started.count(19), 1u);
  EXPECT_EQ(started.at(19).round.term, 1'700'000'000u);
}

// --- the choice ---

TEST(Claims, TheLargestSetDecidesAndItsNewestRoundIsTaken) {
  const auto claim = [](std::uint32_t number, int rank, std::vector<std::string> nonces) {
    return Held{{100, 1, number}, rank, 5, 0, false, false, std::move(nonces)};
  };
  Claims claims{"", {}};
  EXPECT_FALSE(claims.choice({}));
  claims.add("a", claim(3, 0, {"n3", "n2"}), false);
  claims.add("b", claim(9, 0, {"x9", "x8"}), false);
  EXPECT_EQ(claims.choice({})->claim.round.number, 9u);
  EXPECT_TRUE(claims.choice({})->is_lone);
  claims.add("c", claim(1, 1, {"n1"}), false);
  claims.add("d", claim(2, 2, {"n2", "n1"}), false);  // joins a and c
  EXPECT_EQ(claims.choice({})->claim.round.number, 3u);
  EXPECT_FALSE(claims.choice({})->is_lone);
  EXPECT_FALSE(claims.choice({})->is_greater_part);
  for (const int rank : {1, 2}) claims.add("e" + std::to_string(rank), claim(3, rank, {"n3"}), false);
  EXPECT_TRUE(claims.choice({})->is_greater_part);
  claims.add("e3", claim(3, 2, {"n3"}), false);
  claims.withdraw("e1");
  EXPECT_FALSE(claims.choice({})->is_greater_part) << "ranks count, not nodes";
  claims.leave("e2", true);
  claims.leave("e3", true);
  EXPECT_EQ(claims.choice({})->gone, (std::map<int, std::string>{{2, "e3"}}));
  claims.add("f", claim(3, 3, {"n3"}), false);
  EXPECT_TRUE(claims.choice({})->is_greater_part) << "just half of four, with the lowest rank";
  EXPECT_FALSE(claims.choice({})->is_whole);
  claims.add("g", claim(3, 4, {"n3"}), false);
  EXPECT_TRUE(claims.choice(1)->is_whole);
  claims.add("own", claim(0, 1, {"y"}), true);
  EXPECT_EQ(claims.choice({})->claim.round.number, 0u);
  claims.withdraw("own");
  EXPECT_EQ(claims.choice({})->claim.round.number, 3u);
}

TEST(Claims, WhatTheLastClaimantLeavesWithIsBelievedWhereThereIsNothingElse) {
  Claims claims{"", {}};
  claims.add("a", Held{{100, 1, 3}, 0, 2, 0, false, false, {"n"}}, false);
  claims.leave("a", true);
  ASSERT_TRUE(claims.choice({}));
  EXPECT_EQ(claims.choice({})->claim.round.number, 3u);
  EXPECT_FALSE(claims.choice({})->is_greater_part);
  claims.add("b", Held{{100, 1, 2}, 0, 2, 0, false, false, {"m"}}, false);
  EXPECT_EQ(claims.choice({})->claim.round.number, 2u);
}

}  // namespace
}  // namespace ddp::rendezvous
