// Nodes whose connection broke come again, and memberships that begin anew take their rounds over.
#include "membership_job.hpp"

namespace ddp::rendezvous {
namespace {

class Resume : public Job {
 protected:
  // Nodes 1 to `count` of a job that has the same minimum and maximum; node 1 has the endpoint.
  void begin_with(int count, int restarts_max = 1) {
    begin(count, count, restarts_max);
    for (int i = 1; i <= count; ++i) join(static_cast<std::uint64_t>(i), "h" + std::to_string(i), {}, i == 1);
  }
  // Another membership, which knows nothing, is there in place of the one before.
  void begin_anew(int nodes_min, int nodes_max, int restarts_max = 1) {
    begin(nodes_min, nodes_max, restarts_max);
    now += 1s;
    stopped.clear();
  }
};

// --- a broken connection ---

TEST_F(Resume, ABrokenConnectionProvesNothingForAWhile) {
  begin_with(2);
  disconnects(2);
  EXPECT_LE(*membership->next_deadline(), now + 1s);
  pass(999ms);
  EXPECT_TRUE(stopped.empty());
  pass(1ms);
  EXPECT_THAT(stopped.at(1).front().why.value(), AllOf(HasSubstr("host h2"), HasSubstr("reset")));
  ends(1, {}, 2);
  join(3, "c");
  EXPECT_EQ(started.at(3).group_rank, 1) << "its end is proven, so the other goes on";
}

TEST_F(Resume, ABrokenConnectionIsSilenceWhereThatCountsSooner) {
  more_options.heartbeat_timeout = 250ms;
  begin_with(2);
  disconnects(2);
  pass(249ms);
  EXPECT_TRUE(stopped.empty());
  pass(1ms);
  EXPECT_EQ(stopped.count(1), 1u);
}

TEST_F(Resume, WhoComesAgainHasTheSettingsThatItWasLetInWith) {
  begin_with(2);
  disconnects(2);
  hello.workers = 16;
  hello.role = "another";
  hello.run_id = "another";
  hello.nodes_min = hello.nodes_max = 1;
  hello.grace = 100h;
  comes_again(2, 22, held_by(2));
  hello.workers = 2;
  hello.role = "default";
  leaves(1);
  says(22, RoundEnded{started.at(2).round.number, {}, 2, false});
  hello.run_id = "job";
  hello.nodes_min = hello.nodes_max = 2;
  join(3, "c");
  EXPECT_EQ(started.at(3).world_size, 4);
  EXPECT_EQ(started.at(3).role_world_size, 4);
}

TEST_F(Resume, AFarewellIsProofAtOnce) {
  begin_with(2);
  disconnects(2);
  hear(membership->step(NodeEnded{"key-2"}, now));
  EXPECT_EQ(stopped.count(1), 1u);
  pass(1s);
  EXPECT_EQ(stopped.at(1).size(), 1u) << "nothing is awaited any more";
}

TEST_F(Resume, WhoComesAgainInARoundThatRunsIsToldNothingThatItHas) {
  begin_with(2);
  const auto held = held_by(2);
  started.clear();
  disconnects(2);
  comes_again(2, 12, held);
  EXPECT_TRUE(dropped.empty());
  pass(5s);
  EXPECT_TRUE(started.empty());
  EXPECT_TRUE(stopped.empty());
  says(12, RoundFailed{0, "rank 2 ended with exit code 1"});
  EXPECT_EQ(stopped.at(12).size(), 1u);
  EXPECT_EQ(stopped.count(2), 0u);
}

TEST_F(Resume, TheOldConnectionIsDroppedWhereItIsStillOpen) {
  begin_with(2);
  comes_again(2, 12, held_by(2));
  EXPECT_THAT(dropped, ElementsAre(2u));
  says(2, RoundFailed{0, "of the old connection"});
  leaves(2);
  EXPECT_TRUE(stopped.empty());
}

TEST_F(Resume, AStartThatWasLostIsToldAgain) {
  begin_with(2);
  disconnects(2);
  comes_again(2, 12, {});
  ASSERT_EQ(started.count(12), 1u);
  EXPECT_EQ(started.at(12), started.at(2));
}

TEST_F(Resume, AStopThatWasLostIsToldAgain) {
  begin_with(2);
  disconnects(2);
  says(1, RoundFailed{0, "x", {3}});
  comes_again(2, 12, held_by(2));
  ASSERT_EQ(stopped.at(12).size(), 1u);
  EXPECT_EQ(stopped.at(12).front(), stopped.at(2).front());
  says(12, RoundEnded{0, {}, 2, false});
  ends(1, {failure(0, exited(1))}, 1);
  EXPECT_EQ(started.at(12).round.number, 1u);
}

TEST_F(Resume, WhoNeverHeardOfARoundThatIsStoppedHasNothingToEnd) {
  begin_with(2);
  disconnects(2);
  says(1, RoundFailed{0, "x"});
  ends(1, {failure(0, exited(1))}, 1);
  EXPECT_EQ(started.at(1).round.number, 0u);
  comes_again(2, 12, {});
  EXPECT_EQ(started.at(1).round.number, 1u);
  EXPECT_EQ(started.at(12).round.number, 1u);
}

TEST_F(Resume, ANodeThatHasEndedIsWaitedForBeforeAnythingIsDecided) {
  begin_with(2);
  const auto held = held_by(2);
  ends(2);
  disconnects(2);
  ends(1);
  EXPECT_TRUE(finished.empty());
  comes_again(2, 12, held);
  EXPECT_EQ(finished.at(12).exit_code, 0);
  EXPECT_EQ(finished.at(1).exit_code, 0);
}

TEST_F(Resume, TheVerdictIsToldAgain) {
  begin_with(2);
  const auto held = held_by(2);
  ends(1);
  ends(2);
  finished.clear();
  comes_again(2, 12, held);
  EXPECT_EQ(finished.at(12).exit_code, 0);
}

TEST_F(Resume, TheStoreIsAskedForAgain) {
  stores_open = false;
  begin(2, 2);
  join(1, "h1", 1, true);
  join(2, "h2", 0);
  ASSERT_EQ(opened.size(), 1u);
  disconnects(2);
  comes_again(2, 12, {});
  ASSERT_EQ(opened.size(), 2u);
  EXPECT_EQ(opened[1].first, 12u);
  EXPECT_EQ(opened[1].second, opened[0].second);
  disconnects(1);
  says(12, StoreOpened{0, 4000});
  comes_again(1, 11, {});
  EXPECT_EQ(started.at(11).group_rank, 1);
}

TEST_F(Resume, BeforeTheFirstRoundWhoIsAwayIsNotCounted) {
  begin(2, 2);
  join(1, "h1", {}, true);
  disconnects(1);
  join(2, "h2");
  EXPECT_TRUE(started.empty());
  comes_again(1, 11, {});
  EXPECT_EQ(started.size(), 2u);
}

TEST_F(Resume, MembersOfTheRoundBeforeAreWaitedForWhereAnotherOneIsGathered) {
  begin(2, 3, 1);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  leaves(3);
  leaves(2);
  ends(1, {}, 2);
  pass(1s);
  const auto held = held_by(1);
  disconnects(1);
  join(4, "h4");
  join(5, "h5");
  EXPECT_EQ(started.count(4), 0u);
  comes_again(1, 11, held);
  EXPECT_EQ(started.at(11).round.number, 1u);
  EXPECT_EQ(started.at(11).group_world_size, 3);
}

// --- membership that begins anew ---

TEST_F(Resume, ARestartedDaemonIsNoticedByNobody) {
  greater_part_only = false;
  begin_with(3);
  const Held held[] = {held_by(1), held_by(2), held_by(3)};
  const auto first = started.at(1);
  begin_anew(3, 3);
  started.clear();
  said.clear();
  for (const std::uint64_t id : {1u, 2u, 3u}) comes_again(id, 10 + id, held[id - 1]);
  EXPECT_EQ(membership->view().phase, "running");
  EXPECT_FALSE(membership->next_deadline());
  EXPECT_TRUE(started.empty());
  EXPECT_TRUE(stopped.empty());
  says(12, RoundFailed{0, "rank 2 ended with exit code 1"});
  for (const std::uint64_t id : {11u, 12u, 13u}) says(id, RoundEnded{0, {}, 2, false});
  EXPECT_TRUE(finished.count(11) != 0) << "nobody failed after all";

  finished.clear();
  begin_anew(3, 3);
  for (const std::uint64_t id : {1u, 2u, 3u}) comes_again(id, 10 + id, held[id - 1]);
  says(12, RoundEnded{0, {failure(2, exited(1))}, 1, false});
  for (const std::uint64_t id : {11u, 13u}) says(id, RoundEnded{0, {}, 2, false});
  EXPECT_EQ(group_ranks({11, 12, 13}), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(started.at(11).round.number, 1u);
  EXPECT_GT(started.at(11).round.term, first.round.term) << "of the same second";
  EXPECT_EQ(started.at(11).restart_count, 1);
}

// A node with a round, and one that was left behind, which states its round for the restarts alone.
TEST_F(Resume, TheBudgetIsRestatedWithTheAgesOfItsRestarts) {
  restart_window = 1h;
  greater_part_only = false;
  for (const bool is_told : {true, false}) {
    SCOPED_TRACE(is_told);
    started.clear();
    finished.clear();
    begin_with(2, 3);
    for (std::uint32_t round = 0; round < 4; ++round) {
      now += 24h;
      ends(1, {failure(0, exited(3))}, 1);
      ends(2, {}, 2);
      ASSERT_EQ(started.at(1).round.number, round + 1);
    }
    Held held[] = {held_by(1), held_by(2)};
    if (!is_told)
      for (auto& its : held) its.spent_restarts.reset();
    begin_anew(2, 2, 3);
    now += 2h;
    for (auto& its : held)
      if (its.spent_restarts) age(*its.spent_restarts, 2h);
    comes_again(1, 11, held[0]);
    comes_again(2, 12, held[1]);
    EXPECT_EQ(membership->view().restart_count, 4);
    says(11, RoundEnded{4, {failure(0, exited(3))}, 1, false});
    says(12, RoundEnded{4, {}, 2, false});
    EXPECT_EQ(finished.empty(), is_told) << "an older endpoint tells no ages: all count as of now";
  }
}

TEST_F(Resume, TheBudgetIsRestated) {
  greater_part_only = false;
  begin_with(2, 1);
  ends(1, {failure(0, exited(3))}, 1);
  ends(2, {}, 2);
  ASSERT_EQ(started.at(1).restart_count, 1);
  const Held held[] = {held_by(1), held_by(2)};
  begin_anew(2, 2, 1);
  comes_again(1, 11, held[0]);
  comes_again(2, 12, held[1]);
  says(11, RoundEnded{1, {failure(0, exited(3))}, 1, false});
  says(12, RoundEnded{1, {}, 2, false});
  EXPECT_EQ(finished.at(12).exit_code, 3);
}

TEST_F(Resume, NodesThatDoNotComeAreGivenUpAndTheGreaterPartGoesOn) {
  greater_part_only = false;
  begin(1, 3, 1);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  for (const std::uint64_t id : {1u, 2u, 3u}) says(id, RoundStarted{0});
  Held held[] = {held_by(1), held_by(2), held_by(3)};
  for (auto& its : held) its.is_established = true;
  begin_anew(1, 3);
  comes_again(2, 12, held[1]);
  pass(2s);
  comes_again(3, 13, held[2]);
  EXPECT_TRUE(stopped.empty());
  says(12, RoundEnded{0, {failure(2, exited(1), -1s)}, 1, false});
  ASSERT_EQ(stopped.count(13), 1u);
  EXPECT_TRUE(stopped.at(13).front().reseat);
  says(13, RoundEnded{0, {}, 2, false});
  EXPECT_NE(started.count(12), 1u) << "node 1 may still have its workers, and come";
  pass(5s);
  ASSERT_EQ(started.count(12), 1u);
  EXPECT_EQ(group_ranks({12, 13}), (std::vector<int>{1, 0}));
  falls_silent(13);
  says(12, RoundEnded{1, {}, 2, false});
  EXPECT_FALSE(stepped_down) << "after its first decision it has seen everything itself";
}

TEST_F(Resume, ARestartedDaemonThatTheGreaterPartDoesNotReachWaitsForIt) {
  greater_part_only = false;
  begin(1, 3, 1);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  Held held[] = {held_by(1), held_by(2)};
  for (auto& its : held) its.is_established = true;
  begin_anew(1, 3);
  comes_again(1, 11, held[0]);
  pass(6999ms);
  EXPECT_TRUE(stopped.empty()) << "its workers may still be needed";
  pass(1ms);
  ASSERT_EQ(stopped.count(11), 1u);
  EXPECT_TRUE(stopped.at(11).back().reseat);
  says(11, RoundEnded{0, {}, 2, false});
  join(4, "newcomer");
  pass(30s);
  EXPECT_EQ(started.count(11), 0u) << "the others may have gone on elsewhere";
  comes_again(2, 12, held[1]);
  says(12, RoundEnded{0, {}, 2, false});
  pass(1s);
  EXPECT_EQ(started.count(11), 1u);
  EXPECT_FALSE(stepped_down);
}

TEST_F(Resume, ARestartedDaemonWithAsManyNodesAsTheJobTakesWaitsForNobody) {
  greater_part_only = false;
  begin(1, 3, 1);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  auto held = held_by(1);
  held.is_established = true;
  begin_anew(1, 3);
  for (const std::uint64_t id : {4u, 5u}) join(id, "newcomer" + std::to_string(id));
  comes_again(1, 11, held);
  pass(7s);
  says(11, RoundEnded{0, {}, 2, false});
  pass(1s);
  for (const std::uint64_t id : {4u, 5u, 11u}) EXPECT_EQ(started.count(id), 1u) << id;
  EXPECT_FALSE(stepped_down);
}

TEST_F(Resume, ARoundNotKnownToBeEstablishedGoesOnOnlyWhole) {
  greater_part_only = false;
  begin(1, 3, 1);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  const Held held[] = {held_by(1), held_by(2), held_by(3)};
  begin_anew(1, 3);
  for (const std::uint64_t id : {1u, 2u}) comes_again(id, 10 + id, held[id - 1]);
  pass(7s);
  for (const std::uint64_t id : {11u, 12u}) says(id, RoundEnded{0, {}, 2, false});
  pass(30s);
  EXPECT_EQ(started.count(11), 0u);
  comes_again(3, 13, held[2]);
  says(13, RoundEnded{0, {}, 2, false});
  pass(1s);
  EXPECT_EQ(started.count(11), 1u);
}

// The daemon was started again while the round began, so no node has been told that all have started it.
TEST_F(Resume, ARestartedDaemonThatAllNodesReachOutlivesTheLossOfOne) {
  greater_part_only = false;
  begin(1, 3, 1);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  const Held held[] = {held_by(1), held_by(2), held_by(3)};
  begin_anew(1, 3);
  for (const std::uint64_t id : {1u, 2u, 3u}) comes_again(id, 10 + id, held[id - 1]);
  falls_silent(13);
  EXPECT_FALSE(stepped_down);
  for (const std::uint64_t id : {11u, 12u}) says(id, RoundEnded{0, {}, 2, false});
  pass(5s);
  EXPECT_EQ(group_ranks({11, 12}), (std::vector<int>{0, 1}));
  EXPECT_FALSE(stepped_down);
}

TEST_F(Resume, TheNextHostWaitsForNobodyButThoseThatAreLeft) {
  begin(1, 3, 1);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  Held held[] = {held_by(1), held_by(2), held_by(3)};
  for (auto& its : held) its.is_established = true;
  more_options.lost.group_rank = 0;
  begin_anew(1, 3);
  comes_again(2, 0, held[1]);
  EXPECT_TRUE(stopped.empty()) << "one of three";
  comes_again(3, 13, held[2]);
  EXPECT_THAT(stopped.at(0).front().why.value(), HasSubstr("node 0, which had the endpoint, was lost"));
  EXPECT_TRUE(stopped.at(13).front().reseat);
  says(0, RoundEnded{0, {}, 2, false});
  says(13, RoundEnded{0, {}, 2, false});
  EXPECT_EQ(group_ranks({0, 13}), (std::vector<int>{1, 0})) << "a rank that there is not any more is given anew";
  EXPECT_EQ(started.at(13).restart_count, 0);
  comes_again(1, 11, held[0]);
  EXPECT_EQ(stopped.at(11).size(), 1u) << "the lost one comes back, and first ends what it has";
}

TEST_F(Resume, OfTwoNodesTheSecondIsNoGreaterPart) {
  begin_with(2);
  auto held = held_by(2);
  held.is_established = true;
  more_options.lost.group_rank = 0;
  begin_anew(2, 2);
  comes_again(2, 0, held);
  EXPECT_TRUE(stepped_down);
}

TEST_F(Resume, AStopInARoundThatWasTakenOverReachesThoseThatComeLate) {
  begin_with(3);
  const Held held[] = {held_by(1), held_by(2), held_by(3)};
  begin_anew(3, 3);
  comes_again(1, 11, held[0]);
  says(11, RoundFailed{0, "x"});
  comes_again(2, 12, held[1]);
  EXPECT_EQ(stopped.at(12).front().why, "x");
  comes_again(3, 13, held[2]);
  for (const std::uint64_t id : {12u, 13u}) says(id, RoundEnded{0, {}, 2, false});
  says(11, RoundEnded{0, {failure(0, exited(1))}, 1, false});
  EXPECT_EQ(started.at(13).round.number, 1u);
}

TEST_F(Resume, ANewerRoundIsAdoptedInPlaceOfAnOlderOne) {
  begin_with(3);
  const Held older = held_by(1);
  for (const std::uint64_t id : {2u, 3u}) ends(id, {failure(0, exited(1))}, 1);
  ends(1, {}, 2);
  const Held newer[] = {held_by(1), held_by(2), held_by(3)};
  begin_anew(3, 3, 3);
  comes_again(1, 11, older);
  comes_again(2, 12, newer[1]);
  EXPECT_TRUE(stopped.empty()) << "neither is borne out by the greater part yet";
  comes_again(3, 13, newer[2]);
  EXPECT_EQ(membership->view().round, 1);
  ASSERT_EQ(stopped.count(11), 1u);
  EXPECT_EQ(stopped.at(11).front().round, 0u);
  says(11, RoundEnded{0, {}, 2, false});
  pass(7s);  // node 1 has no part in round 1 any more, and is taken in by the next one
  EXPECT_FALSE(stepped_down) << "all three are here, so nobody goes on elsewhere";
  EXPECT_EQ(stopped.count(12) + stopped.count(13), 2u);
}

TEST_F(Resume, ANodeWithAnOlderRoundEndsItFirst) {
  begin(1, 2, 1);
  join(1, "h1", {}, true);
  join(2, "h2");
  const auto older = held_by(2);
  falls_silent(2);
  ends(1, {}, 2);
  ASSERT_EQ(started.at(1).round.number, 1u);
  comes_again(2, 12, older);
  ASSERT_EQ(stopped.at(12).size(), 1u);
  EXPECT_EQ(stopped.at(12).front().round, 0u);
  pass(20s);
  EXPECT_EQ(stopped.at(1).size(), 1u) << "of round 0";
  disconnects(12);
  comes_again(2, 22, older);
  EXPECT_EQ(stopped.at(22).size(), 1u) << "told again";
  says(22, RoundEnded{0, {}, 2, false});
  pass(10s);
  ASSERT_EQ(stopped.at(1).size(), 2u);
  ends(1, {}, 2);
  EXPECT_EQ(group_ranks({1, 22}), (std::vector<int>{0, 1}));

  falls_silent(22);
  ends(1, {}, 2);
  comes_again(2, 32, held_by(22));
  comes_again(2, 42, {});  // its workers have ended
  pass(20s);
  ends(1, {}, 2);
  EXPECT_EQ(started.at(42).group_rank, 1);
}

// One place is free for a newcomer and for a node that says it has an older round.
TEST_F(Resume, OnlyWorkThatIsProvenGoesBeforeANewcomer) {
  for (const bool is_proven : {true, false}) {
    SCOPED_TRACE(is_proven);
    started.clear();
    begin(1, 2, 1);
    join(1, "h1", {}, true);
    join(2, "h2");
    auto older = held_by(2);
    if (!is_proven) older.nonces = {"of another job"};
    falls_silent(2);
    ends(1, {}, 2);
    ASSERT_EQ(started.at(1).round.number, 1u);
    comes_again(2, 12, older);
    says(12, RoundEnded{0, {}, 2, false});
    join(3, "a newcomer");
    pass(10s);
    ends(1, {}, 2);
    ASSERT_EQ(started.at(1).round.number, 2u);
    EXPECT_EQ(started.count(12), is_proven ? 1u : 0u);
    EXPECT_EQ(started.count(3), is_proven ? 0u : 1u);
  }
}

TEST_F(Resume, WhoWasLeftBehindCountsForItsOldRoundNoMore) {
  begin_with(3);
  auto behind = held_by(1);
  behind.is_left_behind = true;
  begin_anew(2, 3);
  comes_again(1, 11, behind);
  EXPECT_EQ(membership->view().phase, "waiting for nodes") << "nobody's round is adopted";
  ASSERT_EQ(stopped.count(11), 1u);
  EXPECT_TRUE(stopped.at(11).front().is_left_behind);
}

TEST_F(Resume, WhoWasLeftBehindComesWithNoSettingsOfItsOwn) {
  greater_part_only = false;  // a daemon's settings may follow those of a round that is claimed
  begin_with(2);
  auto behind = held_by(1);
  behind.is_left_behind = true;
  begin_anew(4, 4);
  comes_again(1, 11, behind);
  hello.nodes_min = hello.nodes_max = 2;
  comes_again(2, 12, behind);
  EXPECT_EQ(membership->view().nodes.size(), 1U) << "its job had another --nnodes";
}

TEST_F(Resume, ThoseThatOthersWentOnWithoutDoNotBeginTheJobAgainByThemselves) {
  begin_with(3);
  auto behind = held_by(2);
  behind.is_left_behind = true;
  more_options.holds_endpoint = true;
  begin_anew(1, 3);
  join(1, "h1", {}, true);
  comes_again(2, 12, behind);
  says(12, RoundEnded{0, {}, 1, false});
  pass(9s);
  EXPECT_THAT(said, Contains(HasSubstr("went on without those that are here; waiting for them")));
  started.clear();
  join(3, "c");
  EXPECT_EQ(started.size(), 3u) << "as many as the job takes: the others have been replaced";
}

TEST_F(Resume, ThoseThatOthersWentOnWithoutEndWhereNoneOfTheOthersComes) {
  begin_with(3);
  auto behind = held_by(2);
  behind.is_left_behind = true;
  more_options.holds_endpoint = true;
  begin_anew(1, 3);
  started.clear();
  comes_again(2, 12, behind);
  says(12, RoundEnded{0, {}, 1, false});
  pass(600s);
  EXPECT_TRUE(started.empty());
  ASSERT_EQ(finished.count(12), 1u);
  EXPECT_EQ(finished.at(12).exit_code, 77);
  EXPECT_THAT(finished.at(12).what.value(), HasSubstr("went on without those that are here; none of them came back"));
}

// They may be a lie.
TEST_F(Resume, TheRestartsThatAMemberKnowsOfCountInALaterRoundIfItWasHereOrHasTheToken) {
  const struct { bool has_token, was_here; } cases[] = {{true, false}, {false, true}, {false, false}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.has_token ? "token" : c.was_here ? "nonce" : "neither");
    more_options = {};
    begin_with(2);
    auto behind = held_by(2);
    behind.is_left_behind = true;
    behind.restart_count = 2;
    more_options.has_token = c.has_token;
    begin_anew(1, 1, 5);
    started.clear();
    join(1, "h1", {}, true);
    if (c.was_here) behind.nonces = {started.at(1).nonce};
    comes_again(2, 12, behind);
    says(12, RoundEnded{0, {}, 1, false});
    leaves(1);
    ASSERT_EQ(started.count(12), 1u);
    EXPECT_EQ(started.at(12).restart_count, c.has_token || c.was_here ? 2 : 1) << "the loss of node 1 costs one here";
  }
}

TEST_F(Resume, TheRestartsThatAMemberKnowsOfCountInTheFirstRound) {
  greater_part_only = false;
  begin_with(2);
  auto behind = held_by(1);
  behind.is_left_behind = true;
  behind.restart_count = 2;
  begin_anew(1, 2, 3);
  auto passer_by = behind;
  passer_by.restart_count = 3;
  comes_again(2, 12, passer_by);
  comes_again(1, 11, behind);
  leaves(12);
  says(11, RoundEnded{0, {}, 1, false});
  pass(60s);
  ASSERT_EQ(started.count(11), 1u);
  EXPECT_EQ(started.at(11).restart_count, 2);
}

TEST_F(Resume, WhoseOldProcessesCannotBeKilledIsRefused) {
  begin(1, 2);
  join(1, "h1", {}, true);
  join(2, "h2");
  const auto older = held_by(2);
  falls_silent(2);
  ends(1, {}, 2);
  comes_again(2, 12, older);
  says(12, RoundEnded{0, {}, 2, true});
  EXPECT_THAT(refused.at(12).what, HasSubstr("could not be killed"));
}

TEST_F(Resume, WhereOthersHaveGoneOnMembershipStepsDown) {
  greater_part_only = false;
  begin(1, 3);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  says(1, RoundStarted{0});
  auto newer = held_by(3);
  ++newer.round.number;
  newer.nonces.insert(newer.nonces.begin(), "newer");
  falls_silent(2);
  falls_silent(3);
  comes_again(3, 13, newer);
  EXPECT_THAT(*stepped_down, HasSubstr("elsewhere"));
}

TEST_F(Resume, NewcomersThatComeFirstWaitForTheRoundThatIs) {
  begin_with(2);
  const Held held[] = {held_by(1), held_by(2)};
  begin_anew(2, 2);
  hello.was_welcomed = true;
  join(21, "spare1");
  join(22, "spare2");
  EXPECT_EQ(started.count(21), 0u) << "others of their job may be about to come";
  comes_again(1, 11, held[0]);
  comes_again(2, 12, held[1]);
  pass(10s);
  EXPECT_EQ(started.count(21), 0u);
  EXPECT_TRUE(stopped.empty());
  leaves(11);
  says(12, RoundEnded{0, {}, 2, false});
  EXPECT_EQ(group_ranks({21, 12}), (std::vector<int>{0, 1}));

  begin_anew(2, 2);
  started.clear();
  join(21, "spare1");
  join(22, "spare2");
  pass(5999ms);
  EXPECT_TRUE(started.empty());
  pass(1ms);
  EXPECT_EQ(started.size(), 2u) << "nobody has come";
}

TEST_F(Resume, ARoundIsAdoptedWhileTheStoreOfAFirstOneIsOpened) {
  begin_with(2);
  const Held held[] = {held_by(1), held_by(2)};
  begin_anew(2, 2);
  stores_open = false;
  join(21, "new1");
  join(22, "new2");
  ASSERT_EQ(opened.back().first, 21u);
  comes_again(1, 11, held[0]);
  started.clear();
  says(21, StoreOpened{opened.back().second.round.number, 4000});
  EXPECT_TRUE(started.empty());
  comes_again(2, 12, held[1]);
  EXPECT_EQ(membership->view().phase, "running");
  EXPECT_EQ(membership->view().round, 0);
}

TEST_F(Resume, WhatNobodyCanHaveIsRefused) {
  begin(2, 2);
  comes_again(1, 11, Held{{1, 1, 0}, 2, 3, 0});
  EXPECT_THAT(refused.at(11).what, HasSubstr("can't be"));
  comes_again(2, 12, Held{{~std::uint64_t{0}, 1, 0}, 0, 2, 0});
  EXPECT_EQ(refused.count(12), 1u);
  comes_again(3, 13, Held{{1, 1, 0xffffffff}, 0, 2, 0});
  EXPECT_EQ(refused.count(13), 1u);
}

// --- the next hosts ---

TEST_F(Resume, TheNextHostsAreNamedWhereTheEndpointIsOnANode) {
  begin(6, 6);
  hello.standby_port = 29500;
  join(1, "h1", {}, true);
  join(2, "h2");
  hello.standby_port = 0;
  join(3, "h3");
  hello.standby_port = 29501;
  for (const std::uint64_t id : {4u, 5u, 6u}) join(id, "h" + std::to_string(id));
  EXPECT_THAT(started.at(3).successors, ElementsAre(Successor{1, "10.0.0.2", 29500}, Successor{3, "10.0.0.4", 29501},
                                                    Successor{4, "10.0.0.5", 29501}));
  EXPECT_EQ(started.at(3).host_group_rank, 0);

  begin(1, 1);
  hello.standby_port = 29500;
  join(1, "h1");
  EXPECT_THAT(started.at(1).successors, IsEmpty()) << "the endpoint stays where it is";
  EXPECT_EQ(started.at(1).host_group_rank, std::nullopt);
}

TEST_F(Resume, ANextHostOnLoopbackIsOfUseWhereAllAreThere) {
  for (const bool has_other : {false, true}) {
    begin(3, 3);
    hello.standby_port = 29500;
    join(1, "h1", {}, true);
    auto its = hello;
    its.node_key = "key-2";
    hear(membership->step(Joined{node(2), its, "127.0.0.1"}, now));
    its.node_key = "key-3";
    hear(membership->step(Joined{node(3), its, has_other ? "10.0.0.3" : "127.0.0.1"}, now));
    EXPECT_EQ(started.at(1).successors.size(), has_other ? 1u : 2u);
  }
}

}  // namespace
}  // namespace ddp::rendezvous
