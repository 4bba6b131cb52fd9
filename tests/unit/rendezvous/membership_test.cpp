#include "rendezvous/membership/membership.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <random>
#include <set>

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr Ending kKilled{Ending::Kind::killed, SIGKILL, false};
Ending exited(int code) { return {Ending::Kind::exited, code, false}; }

NodeId node(std::uint64_t number) { return NodeId{number}; }

// A job of nodes that obey: each begins and ends its rounds when it is told to.
class Job : public ::testing::Test {
 protected:
  void begin(int nodes_min, int nodes_max, int restarts_max = 0) {
    MembershipOptions options;
    options.run_id = "job";
    options.nodes_min = nodes_min;
    options.nodes_max = nodes_max;
    options.restarts_max = restarts_max;
    options.join_timeout = 60s;
    options.last_call_timeout = 10s;
    options.restart_window = restart_window;
    options.greater_part_only = greater_part_only;
    options.term = {1700000000, 7, 0};
    membership.emplace(options, now);
    hello.run_id = "job";
    hello.nodes_min = nodes_min;
    hello.nodes_max = nodes_max;
    hello.workers = 2;
  }

  void join(std::uint64_t id, const std::string& host, std::optional<int> node_rank = {}, bool is_host = false) {
    auto its = hello;
    its.host_name = host;
    its.node_rank = node_rank;
    hear(membership->step(Joined{node(id), its, "10.0.0." + std::to_string(id), is_host}, now));
  }
  void says(std::uint64_t id, const ToMembership& message) { hear(membership->step(Heard{node(id), message}, now)); }
  void leaves(std::uint64_t id) { hear(membership->step(Left{node(id), "gone"}, now)); }
  void falls_silent(std::uint64_t id) { hear(membership->step(Left{node(id), "silent", false}, now)); }
  void pass(std::chrono::milliseconds time) {
    now += time;
    hear(membership->tick(now));
  }

  // Keeps the last message of each kind for each node, and answers where an agent does so at once.
  void hear(const Membership::Actions& actions) {
    std::vector<std::pair<NodeId, ToMembership>> answers;
    for (const auto& action : actions) {
      if (const auto* say = std::get_if<Say>(&action)) said.push_back(say->text);
      const auto* send = std::get_if<Send>(&action);
      if (send == nullptr) continue;
      const auto id = static_cast<std::uint64_t>(send->to);
      if (const auto* start = std::get_if<StartRound>(&send->message)) started[id] = *start;
      if (const auto* stop = std::get_if<StopRound>(&send->message)) stopped[id].push_back(*stop);
      if (const auto* refusal = std::get_if<Refused>(&send->message)) refused[id] = *refusal;
      if (const auto* finish = std::get_if<FinishJob>(&send->message)) finished[id] = *finish;
      if (const auto* open = std::get_if<OpenStore>(&send->message)) {
        opened.push_back({id, *open});
        if (open->is_last && stores_open) answers.emplace_back(send->to, StoreOpened{open->round.number, 4000});
      }
    }
    for (const auto& [id, answer] : answers) hear(membership->step(Heard{id, answer}, now));
  }

  FailureReport failure(int rank, Ending ending, std::chrono::milliseconds job_time = 5s) const {
    FailureReport report;
    report.rank = rank;
    report.ending = ending;
    report.job_time = job_time;
    return report;
  }
  void ends(std::uint64_t id, std::vector<FailureReport> failures = {}, int stopped_count = 0) {
    says(id, RoundEnded{started.at(id).round.number, std::move(failures), stopped_count, false});
  }
  std::vector<int> group_ranks(const std::vector<std::uint64_t>& ids) const {
    std::vector<int> out;
    for (const auto id : ids) out.push_back(started.count(id) != 0 ? started.at(id).group_rank : -1);
    return out;
  }

  std::optional<Membership> membership;
  Hello hello;
  TimePoint now{1h};
  bool stores_open = true;  // at once
  bool greater_part_only = true;
  std::chrono::milliseconds restart_window{0};
  std::map<std::uint64_t, StartRound> started;
  std::map<std::uint64_t, std::vector<StopRound>> stopped;
  std::map<std::uint64_t, Refused> refused;
  std::map<std::uint64_t, FinishJob> finished;
  std::vector<std::pair<std::uint64_t, OpenStore>> opened;
  std::vector<std::string> said;
};

TEST_F(Job, BeginsWhenTheLastNodeHasComeAndGivesEachItsRanks) {
  begin(2, 2);
  join(1, "b");
  EXPECT_TRUE(started.empty());
  hello.workers = 3;
  join(2, "a", {}, true);
  ASSERT_EQ(started.size(), 2u);
  const auto& host = started.at(2);
  EXPECT_EQ(host.group_rank, 0) << "the endpoint's host comes first";
  EXPECT_EQ(host.group_world_size, 2);
  EXPECT_EQ(host.rank_first, 0);
  EXPECT_EQ(host.world_size, 5);
  EXPECT_EQ(host.round.number, 0u);
  EXPECT_EQ(host.round.term, 1700000000u);
  EXPECT_EQ(host.master_port, 4000);
  EXPECT_EQ(started.at(1).rank_first, 3);
  EXPECT_EQ(started.at(1).master_address, "") << "each reaches the endpoint as it did before";
}

TEST_F(Job, NodesThatAreLostTogetherStopTheOthersOnce) {
  begin(2, 4);
  for (std::uint64_t id = 1; id <= 4; ++id) join(id, "host" + std::to_string(id));
  leaves(3);
  leaves(4);
  EXPECT_EQ(stopped.at(1).size(), 1u);
  EXPECT_EQ(stopped.at(2).size(), 1u);
  ends(2);
  started.clear();
  ends(1, {}, 2);
  EXPECT_EQ(started.at(1).group_world_size, 2);
}

TEST_F(Job, ARankIsFreeAgainWhenItsNodeHasLeft) {
  begin(2, 2);
  join(1, "a", 1);
  join(2, "b", 1);
  EXPECT_THAT(refused.at(2).what, HasSubstr("node rank 1 is taken by host a"));
  leaves(1);
  join(3, "c", 1);
  join(4, "d", 0);
  EXPECT_EQ(group_ranks({4, 3}), (std::vector<int>{0, 1}));
}

TEST_F(Job, TheStoreIsOpenedByGroupRankZeroForTheOthersAddresses) {
  begin(2, 2);
  stores_open = false;
  hello.addresses = {"192.168.0.7", "127.0.0.1"};
  join(1, "a", 0);
  join(2, "b", 1, true);
  ASSERT_EQ(opened.size(), 1u);
  EXPECT_EQ(opened[0].first, 1u);
  EXPECT_THAT(opened[0].second.allow, ElementsAre("192.168.0.7", "127.0.0.1", "10.0.0.2"));
  EXPECT_TRUE(started.empty());
  says(1, StoreOpened{9, 4000});
  EXPECT_TRUE(started.empty()) << "of another round";
  says(1, StoreOpened{0, 4000});
  EXPECT_EQ(started.at(2).master_address, "10.0.0.1") << "as it is seen, because it does not host the endpoint";
}

TEST_F(Job, ALocalAddressGoesBeforeAnyOther) {
  begin(1, 1);
  hello.local_address = "ib0.gpu1";
  join(1, "gpu1", {}, true);
  EXPECT_EQ(started.at(1).master_address, "ib0.gpu1");
}

TEST_F(Job, TheAddressesOfManyNodesComeInBoundedMessages) {
  begin(300, 300);
  stores_open = false;
  hello.addresses = {"10.1.0.1"};
  for (std::uint64_t id = 1; id <= 300; ++id) join(id, "n" + std::to_string(id), static_cast<int>(id - 1));
  ASSERT_EQ(opened.size(), 3u);
  std::size_t count = 0;
  for (const auto& [id, open] : opened) {
    EXPECT_LE(open.allow.size(), 256u);
    EXPECT_EQ(open.is_last, &open == &opened.back().second);
    count += open.allow.size();
  }
  EXPECT_EQ(count, 2u * 299);
}

TEST_F(Job, WishedNodeRanksAreGivenAndTheRestFollowsByName) {
  begin(4, 4);
  join(1, "node10");
  join(2, "node2");
  join(3, "node1", 2);
  join(4, "zulu", {}, true);
  EXPECT_EQ(group_ranks({4, 2, 3, 1}), (std::vector<int>{0, 1, 2, 3}));
}

TEST_F(Job, RolesCountTheirOwnRanks) {
  begin(3, 3);
  hello.role = "trainer";
  join(1, "a", 0);
  hello.role = "reader";
  join(2, "b", 1);
  hello.role = "trainer";
  join(3, "c", 2);
  EXPECT_EQ(started.at(3).rank_first, 4);
  EXPECT_EQ(started.at(3).role_rank_first, 2);
  EXPECT_EQ(started.at(3).role_world_size, 4);
  EXPECT_EQ(started.at(2).role_rank_first, 0);
  EXPECT_EQ(started.at(2).role_world_size, 2);
}

TEST_F(Job, WhoDoesNotFitIsRefusedWithTheReason) {
  begin(2, 2);
  join(1, "a", 0);
  join(2, "b", 0);
  EXPECT_THAT(refused.at(2).what, AllOf(HasSubstr("node rank 0"), HasSubstr("host a")));
  join(3, "c", 2);
  EXPECT_THAT(refused.at(3).what, HasSubstr("beyond 2 nodes"));
  hello.run_id = "other";
  join(4, "d");
  EXPECT_THAT(refused.at(4).what, AllOf(HasSubstr("'job'"), HasSubstr("'other'")));
  EXPECT_THAT(refused.at(4).try_this, HasSubstr("--rdzv-id=job"));
  hello.run_id = "job";
  hello.nodes_max = hello.nodes_min = 3;
  join(5, "e");
  EXPECT_THAT(refused.at(5).what, AllOf(HasSubstr("--nnodes=3"), HasSubstr("--nnodes=2")));
  hello.version = 99;
  join(6, "f");
  EXPECT_THAT(refused.at(6).what, HasSubstr("version 99"));
  EXPECT_TRUE(started.empty());
}

TEST_F(Job, MissingNodesEndTheWaitWithTheNamesOfThoseThatCame) {
  begin(3, 3);
  join(1, "a", 0, true);
  join(2, "b", 2);
  pass(59s);
  EXPECT_TRUE(finished.empty());
  pass(1s);
  EXPECT_EQ(finished.at(1).exit_code, 77);
  EXPECT_EQ(finished.at(2).exit_code, 77);
  EXPECT_THAT(finished.at(1).what, AllOf(HasSubstr("only 2 of 3 nodes"), HasSubstr("a (node rank 0)"), HasSubstr("b (node rank 2)")));
}

TEST_F(Job, BetweenMinimumAndMaximumItWaitsForTheLastCall) {
  begin(1, 3);
  join(1, "a", {}, true);
  pass(9s);
  EXPECT_TRUE(started.empty());
  join(2, "b");
  pass(1s);
  EXPECT_EQ(started.at(1).group_world_size, 2);
}

TEST_F(Job, TheLastCallIsCutShortWhereTheWholeWaitEnds) {
  begin(2, 3);
  join(1, "a", {}, true);
  pass(55s);
  join(2, "b");
  EXPECT_TRUE(started.empty());
  pass(5s);
  EXPECT_TRUE(finished.empty()) << "the minimum is there";
  EXPECT_EQ(group_ranks({1, 2}), (std::vector<int>{0, 1}));
}

TEST_F(Job, ARestartWaitsForNobody) {
  begin(2, 4, 2);
  join(1, "a", {}, true);
  join(2, "b");
  pass(10s);
  const auto fail = [&] {
    ends(1, {failure(0, exited(1))});
    ends(2, {}, 2);
  };
  fail();
  EXPECT_EQ(started.at(1).restart_count, 1) << "at once";
  join(3, "c");
  fail();
  EXPECT_EQ(started.at(1).restart_count, 2) << "with the one that has come";
  EXPECT_EQ(group_ranks({1, 2, 3}), (std::vector<int>{0, 1, 2}));
}

TEST_F(Job, NewcomersAreTakenInTogetherWhenTheLastCallIsOver) {
  begin(1, 4);
  join(1, "a", {}, true);
  pass(10s);
  ASSERT_EQ(started.at(1).group_world_size, 1);
  join(2, "b");
  EXPECT_THAT(said.back(), AllOf(HasSubstr("1 more node has come: b"), HasSubstr("10 s")));
  pass(9s);
  join(3, "c");
  EXPECT_TRUE(stopped.empty()) << "the round goes on meanwhile";
  pass(1s);
  EXPECT_EQ(stopped.at(1).front().why, "2 more nodes have come: b, c");
  EXPECT_EQ(stopped.count(2), 0u);
  ends(1, {}, 2);
  EXPECT_EQ(group_ranks({1, 2, 3}), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(started.at(1).round.number, 1u);
  EXPECT_EQ(started.at(1).restart_count, 0) << "it costs nothing";
  EXPECT_EQ(started.at(3).why, "2 more nodes have come: b, c");
}

TEST_F(Job, AtTheMaximumNobodyElseIsWaitedForButARoundLastsAsLongAsALastCall) {
  begin(1, 2);
  join(1, "a", {}, true);
  pass(10s);  // the first round begins
  pass(4s);
  join(2, "b");
  EXPECT_THAT(said.back(), HasSubstr("the next round begins in 6 s"));
  pass(5s);
  EXPECT_TRUE(stopped.empty());
  pass(1s);
  ASSERT_EQ(stopped.count(1), 1u);
  ends(1, {}, 2);
  EXPECT_EQ(group_ranks({1, 2}), (std::vector<int>{0, 1}));
  join(3, "c");
  pass(20s);
  EXPECT_EQ(stopped.at(1).size(), 1u) << "a spare stops nobody";

  begin(1, 2);
  stopped.clear();
  join(1, "a", {}, true);
  pass(10s);
  pass(10s);
  join(2, "b");
  EXPECT_EQ(stopped.count(1), 1u) << "at once";
}

TEST_F(Job, ALastCallEndsWithItsRound) {
  begin(1, 4, 1);
  join(1, "a", {}, true);
  join(2, "b");
  pass(10s);
  join(3, "c");
  ends(2, {failure(2, exited(1))}, 1);
  pass(20s);
  EXPECT_EQ(started.count(3), 0u) << "node a still has processes";
  ends(1, {}, 2);
  EXPECT_EQ(started.at(3).restart_count, 1);

  begin(1, 4, 1);
  started.clear();
  finished.clear();
  join(1, "a", {}, true);
  pass(10s);
  join(2, "b");
  says(1, StopAsked{SIGTERM});
  pass(20s);
  EXPECT_EQ(started.count(2), 0u) << "the job was told to stop";
  ends(1, {}, 2);
  EXPECT_EQ(finished.at(2).exit_code, 143);
}

TEST_F(Job, WhoMissesRanksThatWereStoppedForNewcomersHasNotFailed) {
  begin(2, 3);
  join(1, "a", {}, true);
  join(2, "b");
  pass(10s);
  join(3, "c");
  pass(10s);  // 20 s on the job's clock
  ends(1, {}, 2);
  ends(2, {failure(2, exited(1), 20s), failure(3, exited(1), 20s)}, 0);
  EXPECT_EQ(started.at(3).restart_count, 0);
  EXPECT_EQ(started.at(3).group_world_size, 3);
}

TEST_F(Job, ANewcomerThatCannotStartTheProgramIsLeftOut) {
  begin(1, 2, 3);
  join(1, "a", {}, true);
  pass(10s);
  pass(10s);
  join(2, "b");
  ends(1, {}, 2);
  ASSERT_EQ(started.at(2).round.number, 1u);
  ends(2, {failure(2, {Ending::Kind::not_started, 2, false})});
  EXPECT_THAT(refused.at(2).what, HasSubstr("can't be started on this host"));
  ends(1, {}, 2);
  EXPECT_TRUE(finished.empty());
  EXPECT_EQ(started.at(1).group_world_size, 1);
  EXPECT_THAT(started.at(1).why, HasSubstr("host b can't start the program"));
  EXPECT_EQ(started.at(1).restart_count, 0);
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

TEST_F(Job, ALossLongAfterAFailureDoesNotExcuseIt) {
  begin(1, 2);
  join(1, "a", {}, true);
  join(2, "b");
  says(1, RoundFailed{0, "rank 0 ended with exit code 1"});
  pass(30s);
  leaves(2);
  ends(1, {failure(0, exited(1), 1s)}, 1);
  EXPECT_EQ(finished.at(1).exit_code, 1);
  EXPECT_EQ(finished.at(1).cause->rank, 0);
}

TEST_F(Job, WorkThatIsDoneIsNotDoneAgainForANodeThatLeaves) {
  begin(1, 2);
  join(1, "a", {}, true);
  join(2, "b");
  ends(2);
  leaves(2);
  join(3, "c");
  pass(20s);
  EXPECT_TRUE(stopped.empty());
  ends(1);
  EXPECT_EQ(finished.at(1).exit_code, 0);

  begin(1, 2);
  finished.clear();
  join(1, "a", {}, true);
  join(2, "b");
  ends(1);
  leaves(2);
  EXPECT_EQ(finished.at(1).exit_code, 77) << "what the lost one did is not known";
}

TEST_F(Job, AStopOfASpareWhileTheStoreIsOpenedIsItsOwn) {
  begin(1, 1);
  stores_open = false;
  join(1, "a", {}, true);
  join(2, "b");
  says(2, StopAsked{SIGINT});
  EXPECT_TRUE(finished.empty());
  says(1, StoreOpened{0, 4000});
  EXPECT_EQ(started.count(1), 1u);
}

TEST_F(Job, WhereProcessesCannotBeKilledNoOtherRoundBegins) {
  begin(1, 2);
  join(1, "a", {}, true);
  pass(10s);
  pass(10s);
  join(2, "b");
  says(1, RoundEnded{0, {}, 2, true});
  EXPECT_EQ(finished.at(2).exit_code, 1);
  EXPECT_THAT(finished.at(2).what, HasSubstr("could not be killed"));
}

TEST_F(Job, ANewcomerThatLeavesAgainChangesNothing) {
  begin(1, 3);
  join(1, "a", {}, true);
  pass(10s);
  join(2, "b");
  leaves(2);
  EXPECT_FALSE(membership->next_deadline());
  pass(20s);
  EXPECT_TRUE(stopped.empty());
}

TEST_F(Job, WhoComesWhileTheStoreIsOpenedIsCalledAfterwards) {
  begin(1, 3);
  stores_open = false;
  join(1, "a", {}, true);
  pass(10s);
  join(2, "b");
  says(1, StoreOpened{0, 4000});
  ASSERT_EQ(started.count(1), 1u);
  pass(10s);
  EXPECT_EQ(stopped.count(1), 1u);
}

TEST_F(Job, NobodyIsTakenInWhenTheWorkIsDone) {
  begin(2, 4);
  join(1, "a", {}, true);
  join(2, "b");
  pass(10s);
  ends(1);
  join(3, "c");
  pass(10s);
  EXPECT_TRUE(stopped.empty()) << "the others are about to end too";
  ends(2);
  EXPECT_EQ(finished.at(3).exit_code, 0);

  begin(1, 3);  // all end while they are about to be stopped
  finished.clear();
  join(1, "a", {}, true);
  pass(10s);
  join(2, "b");
  pass(10s);
  ASSERT_EQ(stopped.count(1), 1u);
  ends(1, {}, 0);
  EXPECT_EQ(finished.at(1).exit_code, 0);
}

TEST_F(Job, AFailureWhileNewcomersAreTakenInCostsARestart) {
  begin(1, 2, 1);
  join(1, "a", {}, true);
  pass(10s);
  join(2, "b");
  ends(1, {failure(0, exited(1))}, 1);
  EXPECT_EQ(started.at(2).restart_count, 1);
  EXPECT_THAT(started.at(2).why, HasSubstr("rank 0"));
}

TEST_F(Job, ALossCostsNothingWhereEnoughAreLeft) {
  begin(1, 3);
  join(1, "a", {}, true);
  join(2, "b");
  join(3, "c");
  says(3, RoundFailed{0, "rank 4 ended with exit code 1 on host c"});  // it met the dead rank first
  leaves(2);
  ends(3, {failure(4, exited(1))}, 1);
  ends(1, {}, 2);
  EXPECT_EQ(group_ranks({1, 3}), (std::vector<int>{0, 1})) << "at once";
  EXPECT_EQ(started.at(1).round.number, 1u);
  EXPECT_EQ(started.at(1).restart_count, 0);
  EXPECT_THAT(started.at(1).why, HasSubstr("host b"));
  leaves(3);
  ends(1, {}, 2);
  EXPECT_EQ(started.at(1).group_world_size, 1);
  EXPECT_TRUE(finished.empty());
}

TEST_F(Job, ASpareTakesThePlaceOfALostNodeAtOnce) {
  begin(2, 2);
  join(1, "a", {}, true);
  join(2, "b");
  join(3, "c");
  leaves(2);
  ends(1, {}, 2);
  EXPECT_EQ(group_ranks({1, 3}), (std::vector<int>{0, 1}));
  EXPECT_EQ(started.at(3).restart_count, 0);
}

TEST_F(Job, OnlyTheGreaterPartGoesOnWhereNodesFellSilent) {
  // Group ranks 0 to nodes - 1 are the nodes 1 to `nodes`; node 1 has the endpoint.
  const struct {
    int nodes;
    std::vector<std::uint64_t> silent, ended;
    bool goes_on;
  } cases[] = {
      {2, {2}, {}, true},         {3, {2}, {}, true},     {3, {2, 3}, {}, false}, {3, {3}, {2}, true},
      {4, {2, 3, 4}, {}, false},  {4, {2, 3}, {}, true},  {4, {2, 3}, {4}, false}, {4, {4}, {2, 3}, true},
      {4, {}, {2, 3, 4}, true},   {5, {3, 4, 5}, {}, false},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::to_string(c.nodes) + " nodes, " + std::to_string(c.silent.size()) + " silent, " +
                 std::to_string(c.ended.size()) + " ended");
    started.clear();
    finished.clear();
    begin(1, c.nodes);
    for (int i = 1; i <= c.nodes; ++i) join(static_cast<std::uint64_t>(i), "h" + std::to_string(i), {}, i == 1);
    for (const auto id : c.ended) leaves(id);
    for (const auto id : c.silent) falls_silent(id);
    for (int i = 1; i <= c.nodes; ++i) {
      const auto id = static_cast<std::uint64_t>(i);
      if (std::count(c.ended.begin(), c.ended.end(), id) + std::count(c.silent.begin(), c.silent.end(), id) == 0) ends(id, {}, 2);
    }
    EXPECT_EQ(started.at(1).round.number == 1, c.goes_on);
    ASSERT_EQ(finished.count(1) == 0, c.goes_on);
    if (c.goes_on) continue;
    EXPECT_EQ(finished.at(1).exit_code, 77);
    EXPECT_THAT(finished.at(1).what, HasSubstr(std::to_string(c.silent.size()) + " nodes of round 0 fell silent"));
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

TEST_F(Job, AStoreOnTheEndpointsHostIsReachedAsTheEndpointIs) {
  begin(2, 2);
  auto its = hello;
  its.host_name = "a";
  hear(membership->step(Joined{node(1), its, "127.0.0.1", false}, now));
  join(2, "b");
  EXPECT_EQ(started.at(2).master_address, "");
}

TEST_F(Job, NodesThatFallSilentAfterTheirRoundHasEndedBlockNothing) {
  begin(4, 4, 1);
  for (const std::uint64_t id : {1u, 2u, 3u, 4u}) join(id, "h" + std::to_string(id), {}, id == 1);
  leaves(4);
  for (const std::uint64_t id : {1u, 2u, 3u}) ends(id, {}, 2);
  falls_silent(2);
  falls_silent(3);
  EXPECT_TRUE(finished.empty());
  for (const std::uint64_t id : {5u, 6u, 7u}) join(id, "h" + std::to_string(id));
  EXPECT_EQ(group_ranks({1, 5, 6, 7}), (std::vector<int>{0, 1, 2, 3}));
}

TEST_F(Job, ANodeThatLeavesBeforeTheRoundIsWaitedForAgain) {
  begin(2, 2);
  join(1, "a", {}, true);
  join(2, "b", 1);
  started.clear();
  begin(3, 3);
  join(1, "a", {}, true);
  join(2, "b", 1);
  leaves(2);
  join(3, "c", 1);
  EXPECT_TRUE(refused.empty()) << "its node rank is free again";
  join(4, "d");
  EXPECT_EQ(group_ranks({1, 3, 4}), (std::vector<int>{0, 1, 2}));
}

TEST_F(Job, AllNodesEndWell) {
  begin(2, 2);
  join(1, "a", {}, true);
  join(2, "b");
  ends(1);
  EXPECT_TRUE(finished.empty()) << "the store stays while others work";
  ends(2);
  EXPECT_EQ(finished.at(1).exit_code, 0);
  EXPECT_EQ(finished.at(2).exit_code, 0);
  EXPECT_FALSE(finished.at(1).cause);
}

TEST_F(Job, OneFailureStopsEveryNodeAndIsToldToAll) {
  begin(2, 2);
  join(1, "a", {}, true);
  join(2, "b");
  says(2, RoundFailed{0, "rank 3 was killed by SIGKILL on host b"});
  EXPECT_EQ(stopped.at(1).front().why, "rank 3 was killed by SIGKILL on host b");
  EXPECT_EQ(stopped.at(2).front().why, "") << "it knows";
  ends(2, {failure(3, kKilled)}, 1);
  EXPECT_TRUE(finished.empty());
  ends(1, {}, 2);
  for (const std::uint64_t id : {1u, 2u}) {
    EXPECT_EQ(finished.at(id).exit_code, 137);
    EXPECT_EQ(finished.at(id).cause->rank, 3);
    EXPECT_EQ(finished.at(id).stopped, 3);
    EXPECT_EQ(finished.at(id).world_size, 4);
  }
}

TEST_F(Job, StartsAgainWhileTheOneBudgetLastsWithNewRoundsAndOldRanks) {
  begin(2, 2, 2);
  join(2, "b");
  join(1, "a", {}, true);
  ends(2, {failure(2, exited(1))}, 1);
  EXPECT_EQ(stopped.at(1).size(), 1u);
  ends(1, {}, 2);
  EXPECT_EQ(started.at(1).round.number, 1u);
  EXPECT_EQ(started.at(1).restart_count, 1);
  EXPECT_THAT(started.at(2).why, HasSubstr("rank 2 ended with exit code 1"));
  EXPECT_EQ(group_ranks({1, 2}), (std::vector<int>{0, 1}));
  ends(1, {failure(0, exited(1))}, 1);  // another node's failure costs the same budget
  ends(2, {}, 2);
  EXPECT_EQ(started.at(1).restart_count, 2);
  ends(1, {failure(0, exited(4))}, 1);
  ends(2, {}, 2);
  EXPECT_EQ(finished.at(2).exit_code, 4);
}

TEST_F(Job, OnlyRestartsWithinTheWindowCount) {
  restart_window = 60s;
  begin(1, 1, 2);
  join(1, "a", {}, true);
  for (int restart = 1; restart <= 5; ++restart) {
    ends(1, {failure(0, exited(1))});
    ASSERT_EQ(started.at(1).restart_count, restart);
    pass(30s);  // so two are within a minute, never three
  }
  ends(1, {failure(0, exited(1))});
  EXPECT_TRUE(finished.empty());
  pass(29s);
  ends(1, {failure(0, exited(1))});
  EXPECT_EQ(finished.at(1).exit_code, 1) << "the third in 59 s";
}

TEST_F(Job, WordsOfAnotherRoundMeanNothing) {
  begin(1, 1, 1);
  join(1, "a", {}, true);
  says(1, RoundEnded{7, {failure(0, exited(1))}, 0, false});
  says(1, RoundFailed{7, "x"});
  EXPECT_TRUE(stopped.empty());
  EXPECT_TRUE(finished.empty());
  ends(1);
  ends(1);
  EXPECT_EQ(finished.at(1).exit_code, 0);
}

TEST_F(Job, RoundsGoOnAboveThoseThatHaveLogs) {
  begin(2, 2);
  hello.highest_round = 4;
  join(1, "a", {}, true);
  hello.highest_round = 6;
  join(2, "b");
  EXPECT_EQ(started.at(1).round.number, 7u);
}

TEST_F(Job, LogsOfASpareDoNotChangeTheRoundThatRuns) {
  begin(1, 1, 1);
  join(1, "a", {}, true);
  hello.highest_round = 6;
  join(2, "b");
  ends(1, {failure(0, exited(1))});
  EXPECT_EQ(started.at(1).round.number, 7u);
}

TEST_F(Job, AProgramThatCannotStartIsNotTriedAgain) {
  begin(1, 1, 5);
  join(1, "a", {}, true);
  ends(1, {failure(0, {Ending::Kind::not_started, ENOENT, false})});
  EXPECT_EQ(finished.at(1).exit_code, 127);
}

TEST_F(Job, AStopSignalAnywhereStopsAllAndIsEveryonesExitCode) {
  begin(2, 2, 3);
  join(1, "a", {}, true);
  join(2, "b");
  says(2, StopAsked{SIGINT});
  EXPECT_EQ(stopped.at(1).front().signal_number, SIGINT);
  EXPECT_THAT(stopped.at(1).front().why, AllOf(HasSubstr("SIGINT"), HasSubstr("host b")));
  says(2, StopAsked{SIGINT});
  EXPECT_EQ(stopped.at(1).size(), 1u) << "an echo";
  now += 1s;
  says(2, StopAsked{SIGINT});
  EXPECT_TRUE(stopped.at(1).back().kill);
  ends(1, {}, 2);
  ends(2, {}, 2);
  EXPECT_EQ(finished.at(1).exit_code, 130);
  EXPECT_EQ(finished.at(2).exit_code, 130);
}

TEST_F(Job, OneSignalToEachNodeIsNoSecondSignal) {
  begin(2, 2);
  join(1, "a", {}, true);
  join(2, "b");
  says(2, StopAsked{SIGTERM});
  now += 1s;  // a scheduler's signal reaches one node later than the other
  says(1, StopAsked{SIGTERM});
  EXPECT_FALSE(stopped.at(2).back().kill) << "workers may be saving their state";
  now += 1s;
  says(1, StopAsked{SIGTERM});
  EXPECT_TRUE(stopped.at(2).back().kill);
}

TEST_F(Job, AStopOfASpareIsItsOwn) {
  begin(1, 1, 1);
  join(1, "a", {}, true);
  join(2, "b");
  says(2, StopAsked{SIGTERM});
  EXPECT_TRUE(stopped.empty());
  leaves(2);
  ends(1);
  EXPECT_EQ(finished.at(1).exit_code, 0);
}

TEST_F(Job, AWorkerThatDiesOfTheSignalThatStopsDdprunIsNoFailure) {
  begin(1, 1, 3);
  join(1, "a", {}, true);
  says(1, RoundFailed{0, "x"});  // a scheduler signals every process; the worker's death is seen first
  says(1, StopAsked{SIGTERM});
  ends(1, {failure(0, {Ending::Kind::killed, SIGTERM, false})}, 1);
  EXPECT_EQ(finished.at(1).exit_code, 143);
  EXPECT_FALSE(finished.at(1).cause);
}

TEST_F(Job, AStopSignalEndsARestartButNotTheBlame) {
  for (const int restarts : {1, 0}) {
    begin(1, 1, restarts);
    join(1, "a", {}, true);
    says(1, RoundFailed{0, "x"});
    says(1, StopAsked{SIGINT});
    ends(1, {failure(0, exited(7))}, 0);
    EXPECT_EQ(finished.at(1).exit_code, restarts == 1 ? 130 : 7);
  }
}

TEST_F(Job, AStopBeforeTheFirstRoundEndsTheWait) {
  begin(2, 2);
  join(1, "a", {}, true);
  says(1, StopAsked{SIGTERM});
  EXPECT_EQ(finished.at(1).exit_code, 143);
}

TEST_F(Job, ALostNodeStopsTheOthersAndEndsAJobWithoutRestarts) {
  begin(2, 2);
  join(1, "a", {}, true);
  join(2, "b");
  leaves(2);
  EXPECT_THAT(stopped.at(1).front().why, AllOf(HasSubstr("node 1"), HasSubstr("host b"), HasSubstr("gone")));
  ends(1, {}, 2);
  EXPECT_EQ(finished.at(1).exit_code, 77);
  EXPECT_THAT(finished.at(1).what, HasSubstr("host b"));
}

TEST_F(Job, ALostNodeIsReplacedWhileTheBudgetLastsAndItsRankIsTakenOver) {
  begin(2, 2, 1);
  join(1, "a", {}, true);
  join(2, "b");
  leaves(2);
  ends(1, {}, 2);
  EXPECT_TRUE(finished.empty());
  started.clear();
  pass(30s);
  join(3, "c");
  EXPECT_EQ(group_ranks({1, 3}), (std::vector<int>{0, 1}));
  EXPECT_EQ(started.at(3).restart_count, 1);
  EXPECT_THAT(started.at(1).why, HasSubstr("host b"));
}

TEST_F(Job, AReplacementMayComeBeforeTheLossIsKnown) {
  begin(2, 2, 1);
  join(1, "a", 0, true);
  join(2, "b", 1);
  join(3, "b", 1);
  EXPECT_TRUE(refused.empty());
  leaves(2);
  ends(1, {}, 2);
  EXPECT_EQ(group_ranks({1, 3}), (std::vector<int>{0, 1}));
}

TEST_F(Job, WhoWaitsInVainForAReplacementSaysWhatWasLost) {
  begin(2, 2, 1);
  join(1, "a", {}, true);
  join(2, "b");
  leaves(2);
  ends(1, {}, 2);
  pass(60s);
  EXPECT_EQ(finished.at(1).exit_code, 77);
  EXPECT_THAT(finished.at(1).what, AllOf(HasSubstr("host b"), HasSubstr("only 1 of 2 nodes")));
}

TEST_F(Job, ANodeThatLeavesAfterItsGoodEndIsNotMissed) {
  begin(2, 2);
  join(1, "a", {}, true);
  join(2, "b");
  ends(2);
  leaves(2);
  EXPECT_TRUE(stopped.empty());
  ends(1);
  EXPECT_EQ(finished.at(1).exit_code, 0);
}

TEST_F(Job, NodesBeyondTheMaximumWaitAsSparesAndEndWithTheJob) {
  begin(1, 1, 1);
  join(1, "a", {}, true);
  join(2, "b");
  EXPECT_EQ(started.count(2), 0u);
  ends(1);
  EXPECT_EQ(finished.at(2).exit_code, 0);
}

TEST_F(Job, TheStoresNodeMayDieWhileItOpensIt) {
  begin(2, 2, 1);
  stores_open = false;
  join(1, "a", 1, true);
  join(2, "b", 0);
  leaves(2);
  stores_open = true;
  join(3, "c", 0);
  EXPECT_EQ(group_ranks({3, 1}), (std::vector<int>{0, 1}));
}

TEST_F(Job, ANodeThatNeverOpensTheStoreIsLetGo) {
  begin(2, 2, 1);
  stores_open = false;
  join(1, "a", 1, true);
  join(2, "b", 0);
  pass(29s);
  EXPECT_TRUE(refused.empty());
  pass(1s);
  EXPECT_THAT(refused.at(2).what, HasSubstr("did not open the store"));
  stores_open = true;
  join(3, "c", 0);
  EXPECT_EQ(group_ranks({3, 1}), (std::vector<int>{0, 1}));
  EXPECT_THAT(started.at(1).why, AllOf(HasSubstr("host b"), HasSubstr("store")));
}

TEST(FirstCause, IsTheEarliestButForOneThatWasKilledAtTheSameMoment) {
  const auto at = [](std::chrono::milliseconds time, Ending ending) {
    FailureReport report;
    report.job_time = time;
    report.ending = ending;
    return report;
  };
  EXPECT_EQ(first_cause({at(20ms, exited(1)), at(10ms, exited(1))}), 1u);
  EXPECT_EQ(first_cause({at(10ms, exited(1)), at(40ms, kKilled)}), 1u);
  EXPECT_EQ(first_cause({at(10ms, exited(1)), at(400ms, kKilled)}), 0u);
  EXPECT_EQ(first_cause({at(10ms, exited(1)), at(40ms, {Ending::Kind::killed, SIGABRT, false})}), 0u)
      << "a library aborts when its peer has failed";
  EXPECT_EQ(first_cause({at(10ms, kKilled), at(5ms, kKilled)}), 1u);
}

TEST(NaturalOrder, ComparesNumbersAsNumbers) {
  const char* ordered[] = {"a", "gpu2", "gpu10", "gpu10-a", "gpu11", "node1", "node02", "node3"};
  for (std::size_t i = 0; i + 1 < std::size(ordered); ++i) {
    EXPECT_TRUE(is_before_naturally(ordered[i], ordered[i + 1])) << ordered[i];
    EXPECT_FALSE(is_before_naturally(ordered[i + 1], ordered[i])) << ordered[i];
  }
  EXPECT_FALSE(is_before_naturally("x7", "x7"));
}

// Random histories: whatever nodes do, a round never begins while a node still has processes of the one before, ranks are
// a partition, and the job ends.
TEST(MembershipHistories, KeepTheirPromises) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t n) { return random() % n; };
    MembershipOptions options;
    options.run_id = "job";
    options.nodes_max = static_cast<int>(1 + below(4));
    options.nodes_min = static_cast<int>(1 + below(static_cast<std::uint64_t>(options.nodes_max)));
    options.restarts_max = static_cast<int>(below(3));
    options.join_timeout = 30s;
    options.last_call_timeout = std::chrono::milliseconds(below(5000));
    TimePoint now{1h};
    Membership membership(options, now);
    std::map<std::uint64_t, std::optional<std::uint32_t>> alive;  // node -> the round that it has processes of
    std::map<std::uint32_t, std::map<int, StartRound>> rounds;    // number -> group rank -> what it was told
    std::uint64_t next_id = 0;
    std::vector<std::pair<std::uint64_t, ToMembership>> on_the_way;
    std::map<int, std::uint64_t> here, silent;  // of the last round that began, by group rank
    int finished = 0;
    const auto hear = [&](const Membership::Actions& actions) {
      for (const auto& action : actions) {
        const auto* send = std::get_if<Send>(&action);
        if (send == nullptr) continue;
        const auto id = static_cast<std::uint64_t>(send->to);
        ASSERT_EQ(alive.count(id), 1u) << "a message for a node that has left";
        if (std::holds_alternative<FinishJob>(send->message)) ++finished;
        if (const auto* open = std::get_if<OpenStore>(&send->message)) {
          ASSERT_TRUE(here.size() > silent.size() ||
                      (here.size() == silent.size() && (here.empty() || here.begin()->first < silent.begin()->first)))
              << "the smaller part goes on";
          here.clear();
          silent.clear();
          on_the_way.emplace_back(id, StoreOpened{open->round.number, 1});
        }
        if (const auto* start = std::get_if<StartRound>(&send->message)) {
          for (const auto& [other, round] : alive) ASSERT_TRUE(!round || *round == start->round.number);
          alive[id] = start->round.number;
          here[start->group_rank] = id;
          ASSERT_TRUE(rounds[start->round.number].emplace(start->group_rank, *start).second) << "a rank given twice";
          ASSERT_LE(start->restart_count, options.restarts_max);
        }
      }
    };
    const auto join = [&] {
      Hello hello;
      hello.run_id = "job";
      hello.host_name = "h" + std::to_string(next_id);
      hello.nodes_min = options.nodes_min;
      hello.nodes_max = options.nodes_max;
      hello.workers = static_cast<int>(1 + below(3));
      hello.highest_round = static_cast<int>(below(40)) - 1;
      alive[next_id] = {};
      hear(membership.step(Joined{NodeId{next_id}, hello, "10.0.0.1", next_id == 0}, now));
      ++next_id;
    };
    join();
    for (int i = 0; i < 20000 && !membership.is_finished(); ++i) {
      now += std::chrono::milliseconds(below(400));
      if (membership.next_deadline() && now >= *membership.next_deadline()) hear(membership.tick(now));
      ASSERT_FALSE(::testing::Test::HasFatalFailure());
      if (below(12) == 0 && alive.size() < 6) join();
      if (!on_the_way.empty() && below(2) == 0) {
        const auto [id, message] = on_the_way.front();
        on_the_way.erase(on_the_way.begin());
        if (alive.count(id) != 0) hear(membership.step(Heard{NodeId{id}, message}, now));
      }
      for (auto it = alive.begin(); it != alive.end() && !membership.is_finished();) {
        const auto id = it->first;
        if (it->second && below(10) == 0) {
          RoundEnded ended{*it->second, {}, 0, false};
          if (below(3) == 0) ended.failures.push_back({});
          if (!ended.failures.empty()) ended.failures[0].ending = exited(1);
          it->second.reset();
          ++it;
          hear(membership.step(Heard{NodeId{id}, ended}, now));
        } else if (id != 0 && below(150) == 0) {
          const bool is_proven = below(3) != 0, has_processes = it->second.has_value();
          for (const auto& [rank, member] : std::map(here))
            if (member == id) {
              here.erase(rank);
              if (!is_proven && has_processes) silent[rank] = id;
            }
          it = alive.erase(it);
          hear(membership.step(Left{NodeId{id}, "gone", is_proven}, now));
        } else {
          ++it;
        }
        ASSERT_FALSE(::testing::Test::HasFatalFailure());
      }
      if (below(400) == 0) hear(membership.step(Heard{NodeId{0}, StopAsked{SIGTERM}}, now));
      ASSERT_FALSE(::testing::Test::HasFatalFailure());
    }
    ASSERT_TRUE(membership.is_finished());
    ASSERT_EQ(finished, static_cast<int>(alive.size()));
    for (const auto& [number, told] : rounds) {
      const auto& first = told.begin()->second;
      ASSERT_EQ(static_cast<int>(told.size()), first.group_world_size) << "round " << number;
      int rank = 0;
      for (const auto& [group_rank, start] : told) {
        ASSERT_EQ(start.rank_first >= rank, true);
        rank = start.rank_first + 1;
        ASSERT_EQ(start.world_size, first.world_size);
      }
    }
  }
}

}  // namespace
}  // namespace ddp::rendezvous
