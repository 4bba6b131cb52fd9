#include "launcher/node/node_core.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "launcher/node/event_order.hpp"
#include "rendezvous/membership/membership.hpp"
#include "tests/unit/actions_of.hpp"

namespace ddp::launcher {
namespace {

using testing::all;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

using Actions = NodeCore::Actions;

template <class Message>
std::vector<Message> sent(const Actions& actions) {
  std::vector<Message> out;
  for (const auto& send : all<NodeCore::Send>(actions))
    if (const auto* message = std::get_if<Message>(&send.message)) out.push_back(*message);
  return out;
}

std::vector<int> exit_codes(const Actions& actions) {
  std::vector<int> out;
  for (const auto& finish : all<NodeCore::Finish>(actions)) out.push_back(rendezvous::exit_code_of(finish.outcome));
  return out;
}

std::string printed(const Actions& actions) {
  std::string out;
  for (const auto& line : all<NodeCore::Print>(actions)) out += line.line + "\n";
  for (const auto& text : all<NodeCore::PrintText>(actions)) out += text.text;
  return out;
}

// One of two nodes with two workers each, which another node serves.
class NodeCoreOfTwo : public ::testing::Test {
 protected:
  Actions step(const NodeCore::Event& event) { return core_.step(event, facts_); }

  Actions hear(const rendezvous::ToAgent& message) { return step(NodeCore::MembershipSaid{message, "node0"}); }

  static rendezvous::StartRound start(std::uint32_t round) {
    rendezvous::StartRound out;
    out.round = {1, 0, round};
    out.group_rank = 1;
    out.group_world_size = 2;
    out.rank_first = 2;
    out.world_size = 4;
    out.master_port = 4000;
    return out;
  }

  void run(std::uint32_t round = 0) { run(start(round)); }

  void run(const rendezvous::StartRound& round) {
    hear(rendezvous::Welcome{});
    ASSERT_EQ(all<NodeCore::OpenOutput>(hear(round)).size(), 1U);
    ASSERT_EQ(all<NodeCore::Spawn>(step(NodeCore::OutputOpened{})).size(), 1U);
    step({NodeCore::WorkersChanged{WorkerStarted{0}, WorkerStarted{1}}});
  }

  // These and what follows, once the output is written of the workers that have ended.
  Actions written(Actions actions) {
    if (all<NodeCore::CloseOutput>(actions).empty()) return actions;
    for (auto& action : step(NodeCore::OutputWritten{})) actions.push_back(std::move(action));
    return actions;
  }

  // Reports of a round's end, once nothing is found in the files of failed workers.
  std::vector<NodeCore::SendRoundEnded> reports(const Actions& ended) {
    const auto actions = written(ended);
    auto out = all<NodeCore::SendRoundEnded>(actions);
    for (const auto& wanted : all<NodeCore::ReadReasons>(actions))
      for (const auto& report : all<NodeCore::SendRoundEnded>(step(NodeCore::ReasonsRead{wanted.number})))
        out.push_back(report);
    return out;
  }

  // The first worker of the round fails, and the second is stopped.
  Actions fail() {
    step({NodeCore::WorkersChanged{WorkerEnded{0, {Ending::Kind::exited, 3, false}}}});
    step(NodeCore::WorkersChanged{TreeSignalled{SIGTERM}});
    return written(
        step({NodeCore::WorkersChanged{WorkerEnded{1, {Ending::Kind::killed, SIGTERM, false}}, TreeEmpty{}}}));
  }

  // In round 0 the second worker is killed, and the first lives on and waits for a seat.
  Actions lose_second() {
    run();
    step(NodeCore::WorkerSaid{0, worker_link::LinkHello{.takes_seats = true}});
    step({NodeCore::WorkersChanged{WorkerEnded{1, {Ending::Kind::killed, SIGKILL, false}}}});
    step(NodeCore::WorkerSaid{0, worker_link::LinkLeft{0, {}, "rank 3 ended"}});
    return step({NodeCore::WorkersChanged{OrphansGone{}, OrphansGone{}}});
  }

  NodeCore core_{{2, 2, 30s, 0ms, 0ms, "b"}};
  NodeCore::Facts facts_{TimePoint(100s), 5s, false, true};
};

TEST_F(NodeCoreOfTwo, LogIsWrittenToAFileOnlyIfTheJobEndsBadly) {
  for (const int exit_code : {0, 3}) {
    SCOPED_TRACE(exit_code);
    NodeCore core({2, 2, 30s, 0ms, 0ms, "b"});
    rendezvous::FinishJob verdict;
    verdict.exit_code = exit_code;
    const auto finish = all<NodeCore::Finish>(core.step(NodeCore::MembershipSaid{verdict, "node0"}, facts_));
    ASSERT_EQ(finish.size(), 1U);
    EXPECT_EQ(finish.front().keeps_log, exit_code != 0);
  }
}

TEST_F(NodeCoreOfTwo, WritesTheRecordOfEachRoundThatHasANonce) {
  auto first = start(0);
  EXPECT_EQ(all<NodeCore::WriteRecord>(hear(first)).size(), 0U) << "an older endpoint gives none";
  first.round.number = 1;
  first.nonce = std::string(32, 'a');
  EXPECT_EQ(all<NodeCore::WriteRecord>(hear(first)).size(), 1U);
}

// It is left out for a broken link.
class NodeCoreWithLinksToCheck : public NodeCoreOfTwo {
 protected:
  void SetUp() override {
    hear(rendezvous::Welcome{});
    hear(rendezvous::CheckLinks{{{"10.0.0.2", 29501}}});
  }
  // Whether the links are tried, after this time and not before.
  bool are_tried_after(std::chrono::milliseconds time) {
    facts_.now += time - 1ms;
    const bool is_too_early = !core_.tick(facts_).empty();
    facts_.now += 1ms;
    if (core_.next_deadline() != facts_.now) return false;
    return all<NodeCore::TryLinks>(core_.tick(facts_)).size() == 1 && !is_too_early;
  }
};

TEST_F(NodeCoreWithLinksToCheck, TriesThemWithGrowingPausesAndTellsOnceThatTheyWork) {
  for (const auto pause : {1s, 2s, 4s, 8s, 10s, 10s}) {
    ASSERT_TRUE(are_tried_after(pause)) << pause.count();
    EXPECT_FALSE(core_.next_deadline()) << "until the answer comes";
    EXPECT_TRUE(step(NodeCore::LinksTried{false}).empty());
  }
  ASSERT_TRUE(are_tried_after(10s));
  EXPECT_EQ(sent<rendezvous::LinksWork>(step(NodeCore::LinksTried{true})).size(), 1U);
  EXPECT_FALSE(core_.next_deadline());
  EXPECT_TRUE(step(NodeCore::LinksTried{true}).empty());
}

TEST_F(NodeCoreWithLinksToCheck, TriesNoneAnyMoreInARound) {
  ASSERT_TRUE(are_tried_after(1s));
  run();
  EXPECT_TRUE(step(NodeCore::LinksTried{true}).empty());
  EXPECT_FALSE(core_.next_deadline());
}

// Round 0 has ended well, and the output of its workers is not written yet.
class NodeCoreClosingOutput : public NodeCoreOfTwo {
 protected:
  void SetUp() override {
    run();
    const auto actions = step({NodeCore::WorkersChanged{WorkerEnded{0, {}}, WorkerEnded{1, {}}, TreeEmpty{}}});
    EXPECT_EQ(all<NodeCore::CloseOutput>(actions).size(), 1U);
    EXPECT_TRUE(all<NodeCore::SendRoundEnded>(actions).empty());
  }
};

TEST_F(NodeCoreClosingOutput, TheRoundIsReportedOnceItsOutputIsWritten) {
  EXPECT_EQ(all<NodeCore::SendRoundEnded>(step(NodeCore::OutputWritten{})).size(), 1U);
  EXPECT_FALSE(core_.next_deadline());
  EXPECT_TRUE(step(NodeCore::OutputWritten{}).empty()) << "reported once";
}

TEST_F(NodeCoreClosingOutput, ASlowDiskIsToldOnceAndDelaysTheReportForAMomentOnly) {
  for (const std::uint32_t round : {0U, 1U}) {
    ASSERT_EQ(core_.next_deadline(), facts_.now + 2s);
    EXPECT_TRUE(core_.tick(facts_).empty());
    facts_.now += 2s;
    const auto actions = core_.tick(facts_);
    EXPECT_EQ(printed(actions),
              round == 0 ? "the disk of the log files is slow; what is left is written while the job goes on\n" : "");
    ASSERT_EQ(all<NodeCore::SendRoundEnded>(actions).size(), 1U);
    EXPECT_EQ(all<NodeCore::SendRoundEnded>(actions).front().message.round, round);
    EXPECT_TRUE(step(NodeCore::OutputWritten{}).empty()) << "too late";
    if (round == 1) break;
    run(1);
    step({NodeCore::WorkersChanged{WorkerEnded{0, {}}, WorkerEnded{1, {}}, TreeEmpty{}}});
  }
}

TEST_F(NodeCoreClosingOutput, ARoundThatBeginsMeanwhileGoesAfterTheReportOfTheLast) {
  const auto actions = hear(start(1));
  ASSERT_FALSE(actions.empty());
  EXPECT_TRUE(std::holds_alternative<NodeCore::SendRoundEnded>(actions.front()));
  EXPECT_EQ(all<NodeCore::OpenOutput>(actions).size(), 1U);
  EXPECT_TRUE(step(NodeCore::OutputWritten{}).empty());
}

TEST_F(NodeCoreClosingOutput, AVerdictMeanwhileEndsTheNodeOnceItsOutputIsWritten) {
  rendezvous::FinishJob verdict;
  verdict.exit_code = 3;
  EXPECT_TRUE(exit_codes(hear(verdict)).empty());
  const auto actions = step(NodeCore::OutputWritten{});
  EXPECT_EQ(exit_codes(actions), std::vector{3});
  EXPECT_TRUE(all<NodeCore::SendRoundEnded>(actions).empty()) << "nobody waits for it any more";
}

TEST_F(NodeCoreClosingOutput, AStopThatNobodyHearsEndsTheNodeThoughTheDiskIsSlow) {
  facts_.is_joined = false;
  EXPECT_TRUE(exit_codes(step(NodeCore::StopSignalled{SIGTERM})).empty());
  facts_.now += 2s;
  EXPECT_EQ(exit_codes(core_.tick(facts_)), std::vector{128 + SIGTERM});
  EXPECT_FALSE(core_.next_deadline());
}

TEST_F(NodeCoreClosingOutput, TheEndOfTheGuardianMeanwhileIsTheEndOfTheNode) {
  const auto actions = step(NodeCore::GuardianEnded{{Ending::Kind::killed, SIGKILL, false}, 77});
  EXPECT_EQ(exit_codes(actions), std::vector<int>()) << "what its workers printed comes first";
  EXPECT_EQ(all<NodeCore::CloseOutput>(actions).size(), 1U);
  EXPECT_TRUE(hear(start(1)).empty()) << "nobody can start workers";
  EXPECT_EQ(exit_codes(step(NodeCore::OutputWritten{})), std::vector{128 + SIGKILL});
  EXPECT_TRUE(step(NodeCore::OutputWritten{}).empty());
}

TEST_F(NodeCoreClosingOutput, TheEndOfTheGuardianWaitsForASlowDiskForAMomentOnly) {
  step(NodeCore::GuardianEnded{{Ending::Kind::killed, SIGKILL, false}, 77});
  ASSERT_EQ(core_.next_deadline(), facts_.now + 2s);
  EXPECT_TRUE(core_.tick(facts_).empty());
  facts_.now += 2s;
  EXPECT_EQ(exit_codes(core_.tick(facts_)), std::vector{128 + SIGKILL});
}

TEST_F(NodeCoreClosingOutput, ASignalAfterTheVerdictChangesNothingOfIt) {
  rendezvous::FinishJob verdict;
  verdict.exit_code = 3;
  hear(verdict);
  facts_.is_joined = false;
  EXPECT_EQ(exit_codes(step(NodeCore::StopSignalled{SIGTERM})), std::vector{3});
}

TEST_F(NodeCoreClosingOutput, AReaderThatLeavesAfterTheVerdictChangesNothingOfIt) {
  rendezvous::FinishJob verdict;
  verdict.exit_code = 3;
  hear(verdict);
  facts_.is_joined = false;
  EXPECT_TRUE(exit_codes(step(NodeCore::OutputClosed{})).empty());
  EXPECT_EQ(exit_codes(step(NodeCore::OutputWritten{})), std::vector{3});
}

TEST_F(NodeCoreOfTwo, AVerdictEndsAWorkerThatWaitsForASeatAlsoWhileTheOutputOfAnotherIsWritten) {
  const auto closed = all<NodeCore::CloseOutput>(lose_second());
  ASSERT_EQ(closed.size(), 1U);
  EXPECT_EQ(closed.front().kept, std::vector{0});
  rendezvous::FinishJob verdict;
  verdict.exit_code = 3;
  EXPECT_FALSE(all<SignalTree>(hear(verdict)).empty());
  EXPECT_TRUE(step(NodeCore::OutputWritten{}).empty()) << "a worker still runs";
  const auto actions = step({NodeCore::WorkersChanged{WorkerEnded{0, {}}, TreeEmpty{}}});
  EXPECT_TRUE(exit_codes(actions).empty()) << "its output is not written yet";
  EXPECT_EQ(exit_codes(written(actions)), std::vector{3});
}

// The first worker of round 0 has failed, and its files are not read yet.
class NodeCoreReadingReasons : public NodeCoreOfTwo {
 protected:
  void SetUp() override {
    run();
    const auto actions = fail();
    EXPECT_TRUE(all<NodeCore::SendRoundEnded>(actions).empty());
    const auto wanted = all<NodeCore::ReadReasons>(actions);
    ASSERT_EQ(wanted.size(), 1U);
    EXPECT_EQ(wanted.front().local_ranks, std::vector{0});
    number_ = wanted.front().number;
  }

  Actions read() { return step(NodeCore::ReasonsRead{number_, {{"no data"}, {{"Traceback", "ValueError"}}}}); }

  std::uint64_t number_ = 0;
};

TEST_F(NodeCoreReadingReasons, TheReportSaysWhatTheFilesOfAFailedWorkerSay) {
  const auto sent = all<NodeCore::SendRoundEnded>(read());
  ASSERT_EQ(sent.size(), 1U);
  ASSERT_EQ(sent.front().message.failures.size(), 1U);
  EXPECT_EQ(sent.front().message.stopped, 1);
  EXPECT_EQ(sent.front().message.failures.front().message, "no data");
  EXPECT_THAT(sent.front().message.failures.front().stderr_tail, ElementsAre("Traceback", "ValueError"));
  EXPECT_FALSE(core_.next_deadline());
  EXPECT_TRUE(read().empty()) << "reported once";
}

TEST_F(NodeCoreReadingReasons, TheReportGoesWithoutReasonsThatAreNotReadInTime) {
  ASSERT_EQ(core_.next_deadline(), facts_.now + 2s);
  EXPECT_TRUE(core_.tick(facts_).empty());
  facts_.now += 2s;
  const auto actions = core_.tick(facts_);
  EXPECT_THAT(printed(actions), HasSubstr("error files and logs of failed workers are still not read after 2 s"));
  const auto sent = all<NodeCore::SendRoundEnded>(actions);
  ASSERT_EQ(sent.size(), 1U);
  ASSERT_EQ(sent.front().message.failures.size(), 1U);
  EXPECT_EQ(sent.front().message.failures.front().message, "");
  EXPECT_FALSE(core_.next_deadline());
  EXPECT_TRUE(read().empty()) << "too late";
}

TEST_F(NodeCoreReadingReasons, ALateAnswerIsNotTakenForThatOfALaterRound) {
  facts_.now += 2s;
  static_cast<void>(core_.tick(facts_));
  run(1);
  const auto wanted = all<NodeCore::ReadReasons>(fail());
  ASSERT_EQ(wanted.size(), 1U);
  EXPECT_TRUE(read().empty());
  const auto sent = all<NodeCore::SendRoundEnded>(step(NodeCore::ReasonsRead{wanted.front().number, {{"later"}, {}}}));
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent.front().message.round, 1U);
  EXPECT_EQ(sent.front().message.failures.front().message, "later");
}

TEST_F(NodeCoreReadingReasons, ARoundThatBeginsMeanwhileGoesAfterTheReportOfTheLast) {
  const auto actions = hear(start(1));
  ASSERT_GE(actions.size(), 2U);
  const auto* report = std::get_if<NodeCore::SendRoundEnded>(&actions.front());
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(report->message.round, 0U);
  EXPECT_EQ(all<NodeCore::SendRoundEnded>(actions).size(), 1U);
  EXPECT_EQ(all<NodeCore::OpenOutput>(actions).size(), 1U);
  EXPECT_TRUE(read().empty());
}

TEST_F(NodeCoreReadingReasons, AStopMeanwhileTakesNoReasonAway) {
  EXPECT_TRUE(
      all<NodeCore::SendRoundEnded>(hear(rendezvous::StopRound{.round = 0, .signal_number = SIGTERM, .why = "of 1"}))
          .empty());
  const auto actions = step(NodeCore::StopSignalled{SIGTERM});
  EXPECT_EQ(sent<rendezvous::StopAsked>(actions).size(), 1U);
  EXPECT_TRUE(exit_codes(actions).empty()) << "the others give the verdict";
  const auto reported = all<NodeCore::SendRoundEnded>(read());
  ASSERT_EQ(reported.size(), 1U);
  EXPECT_EQ(reported.front().message.failures.front().message, "no data");
}

TEST_F(NodeCoreReadingReasons, ANodeThatEndsMeanwhileDoesNotWaitForThem) {
  facts_.is_joined = false;
  EXPECT_EQ(exit_codes(step(NodeCore::StopSignalled{SIGTERM})), std::vector{128 + SIGTERM});
  EXPECT_FALSE(core_.next_deadline());
  EXPECT_TRUE(read().empty());
}

TEST_F(NodeCoreReadingReasons, AVerdictMeanwhileDoesNotWaitForThem) {
  rendezvous::FinishJob verdict;
  verdict.exit_code = 3;
  EXPECT_EQ(exit_codes(hear(verdict)), std::vector{3});
  EXPECT_TRUE(read().empty());
}

TEST_F(NodeCoreOfTwo, AWorkerThatEndsWhileReasonsAreReadIsNoFailureOfThatRound) {
  const auto wanted = all<NodeCore::ReadReasons>(written(lose_second()));
  ASSERT_EQ(wanted.size(), 1U);
  const auto actions = step({NodeCore::WorkersChanged{WorkerEnded{0, {Ending::Kind::exited, 4, false}}}});
  EXPECT_EQ(all<KillOrphans>(actions).size(), 1U);
  EXPECT_TRUE(reports(actions).empty());
  const auto sent = all<NodeCore::SendRoundEnded>(step(NodeCore::ReasonsRead{wanted.front().number, {{"why"}, {}}}));
  ASSERT_EQ(sent.size(), 1U);
  ASSERT_EQ(sent.front().message.failures.size(), 1U);
  EXPECT_EQ(sent.front().message.failures.front().local_rank, 1);
  EXPECT_EQ(sent.front().message.failures.front().message, "why");
}

TEST_F(NodeCoreOfTwo, ALostMembershipHearsNoReportOfAnEarlierRound) {
  const auto wanted = all<NodeCore::ReadReasons>(written(lose_second()));
  ASSERT_EQ(wanted.size(), 1U);
  EXPECT_FALSE(all<SignalTree>(step(NodeCore::MembershipLost{{"nobody answers", "there", "this"}})).empty())
      << "a worker waits for a seat";
  EXPECT_TRUE(step(NodeCore::ReasonsRead{wanted.front().number, {{"why"}, {}}}).empty());
}

TEST_F(NodeCoreOfTwo, WorkerThatHungUntilOurSignalIsReportedAsKilledByDdprun) {
  using worker_link::Departure;
  run();
  const Departure departure{
      0, Departure::Kind::for_others, {3}, "rank 3 did not come to all_reduce, call 12", {}, true, {3}};
  step(NodeCore::WorkerSaid{0, worker_link::LinkHello{.departure = departure}});
  step({NodeCore::WorkersChanged{WorkerEnded{0, {Ending::Kind::exited, 1, false}}}});
  rendezvous::StopRound stop;
  stop.hung_ranks = {3};
  stop.gathers = true;
  hear(stop);
  facts_.now += 1s;
  EXPECT_EQ(all<SignalTree>(core_.tick(facts_)).size(), 1U);
  const auto sent =
      reports(step({NodeCore::WorkersChanged{WorkerEnded{1, {Ending::Kind::killed, SIGTERM, false}}, TreeEmpty{}}}));
  ASSERT_EQ(sent.size(), 1U);
  const auto& failures = sent.front().message.failures;
  ASSERT_EQ(failures.size(), 2U);
  EXPECT_EQ(failures[0].local_rank, 1);
  EXPECT_THAT(failures[0].killed_for, HasSubstr("rank 3 did not come to all_reduce, call 12"));
}

TEST_F(NodeCoreOfTwo, FirstCauseOfTheNodeIsReportedFirstThoughItEndsLater) {
  using worker_link::Departure;
  run();
  const Departure for_second{0, Departure::Kind::for_others, {3}, "rank 3 left"};
  step(NodeCore::WorkerSaid{1, worker_link::LinkHello{.departure = Departure{0, Departure::Kind::own_error, {}, ""}}});
  step(NodeCore::WorkerSaid{0, worker_link::LinkHello{.departure = for_second}});
  step({NodeCore::WorkersChanged{WorkerEnded{0, {Ending::Kind::exited, 1, false}}}});
  const auto sent =
      reports(step({NodeCore::WorkersChanged{WorkerEnded{1, {Ending::Kind::exited, 3, false}}, TreeEmpty{}}}));
  ASSERT_EQ(sent.size(), 1U);
  const auto& failures = sent.front().message.failures;
  ASSERT_EQ(failures.size(), 2U);
  EXPECT_EQ(failures[0].local_rank, 1);
  EXPECT_TRUE(failures[0].is_own_error);
  EXPECT_EQ(failures[1].accused, std::vector{3});
  EXPECT_EQ(failures[1].message, "rank 3 left");
}

TEST_F(NodeCoreOfTwo, AnErrorFileSaysMoreThanThatAWorkerGaveUpItsGroup) {
  using worker_link::Departure;
  run();
  const Departure aborted{0, Departure::Kind::own_error, {}, "its process group was aborted"};
  step(NodeCore::WorkerSaid{0, worker_link::LinkHello{.departure = aborted}});
  const auto wanted = all<NodeCore::ReadReasons>(fail());
  ASSERT_EQ(wanted.size(), 1U);
  const auto sent =
      all<NodeCore::SendRoundEnded>(step(NodeCore::ReasonsRead{wanted.front().number, {{"ValueError: no data"}, {}}}));
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent.front().message.failures.front().message, "ValueError: no data");
}

TEST_F(NodeCoreOfTwo, AWorkerThatIsInAGroupAgainHasNotDeparted) {
  using worker_link::Departure;
  run();
  step(NodeCore::WorkerSaid{0, worker_link::LinkHello{.departure = Departure{0, Departure::Kind::own_error, {}, ""}}});
  step(NodeCore::WorkerSaid{0, worker_link::LinkHello{}});
  const auto sent = reports(fail());
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_FALSE(sent.front().message.failures.front().is_own_error);
}

TEST_F(NodeCoreOfTwo, WhatAWorkerSaidOfAnotherRoundIsVoid) {
  using worker_link::Departure;
  run();
  step(NodeCore::WorkerSaid{0, worker_link::LinkHello{.departure = Departure{7, Departure::Kind::own_error, {}, ""}}});
  const auto sent = reports(fail());
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_FALSE(sent.front().message.failures.front().is_own_error);
}

TEST_F(NodeCoreOfTwo, HungWorkerIsReportedAsKilledByDdprun) {
  run();
  rendezvous::StopRound stop;
  stop.signal_number = SIGTERM;
  stop.hung_ranks = {3};
  stop.why = "rank 0 left its group: rank 3 did not come to all_reduce #12 within 30 s";
  hear(stop);
  step({NodeCore::WorkersChanged{WorkerEnded{0, {Ending::Kind::killed, SIGTERM, false}}}});
  facts_.now += 30s;
  EXPECT_FALSE(core_.tick(facts_).empty()) << "its grace is over";
  const auto sent =
      reports(step({NodeCore::WorkersChanged{WorkerEnded{1, {Ending::Kind::killed, SIGKILL, false}}, TreeEmpty{}}}));
  ASSERT_EQ(sent.size(), 1U);
  ASSERT_EQ(sent.front().message.failures.size(), 1U);
  EXPECT_THAT(rendezvous::describe_failure(sent.front().message.failures.front()),
              AllOf(HasSubstr("rank 3 was killed by ddprun"), HasSubstr("did not come to all_reduce #12 within 30 s")));
}

TEST_F(NodeCoreOfTwo, TheReasonsOfAllFailedWorkersAreReadAndTheStderrOfThoseThatMayBeTheCauseIsTold) {
  run();
  const auto wanted = all<NodeCore::ReadReasons>(
      written(step({NodeCore::WorkersChanged{WorkerEnded{1, {Ending::Kind::exited, 3, false}},
                                             WorkerEnded{0, {Ending::Kind::exited, 4, false}}, TreeEmpty{}}})));
  ASSERT_EQ(wanted.size(), 1U);
  EXPECT_EQ(wanted.front().local_ranks, (std::vector{1, 0}));
  const auto sent = all<NodeCore::SendRoundEnded>(
      step(NodeCore::ReasonsRead{wanted.front().number, {{"of 1", "of 0"}, {{"last line of 1"}, {"last line of 0"}}}}));
  ASSERT_EQ(sent.size(), 1U);
  const auto& failures = sent.front().message.failures;
  ASSERT_EQ(failures.size(), 2U);
  EXPECT_EQ(failures[0].message, "of 1");
  EXPECT_EQ(failures[1].message, "of 0");
  EXPECT_THAT(failures[0].stderr_tail, ElementsAre("last line of 1"));
  EXPECT_THAT(failures[1].stderr_tail, ElementsAre("last line of 0")) << "another node may know that it was first";
}

TEST_F(NodeCoreOfTwo, LastWordsOnStderrCountWhereThereIsNoErrorFile) {
  run();
  const auto wanted = all<NodeCore::ReadReasons>(
      written(step({NodeCore::WorkersChanged{WorkerEnded{1, {Ending::Kind::exited, 1, false}},
                                             WorkerEnded{0, {Ending::Kind::exited, 1, false}}, TreeEmpty{}}})));
  ASSERT_EQ(wanted.size(), 1U);
  const Reasons reasons{
      {"", ""},
      {{"Traceback", "RuntimeError: [gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:4012"},
       {"Traceback", "ValueError: the batch is empty"}}};
  const auto sent = all<NodeCore::SendRoundEnded>(step(NodeCore::ReasonsRead{wanted.front().number, reasons}));
  ASSERT_EQ(sent.size(), 1U);
  const auto& failures = sent.front().message.failures;
  ASSERT_EQ(failures.size(), 2U);
  EXPECT_THAT(failures[0].stderr_tail, ElementsAre("Traceback", "ValueError: the batch is empty"));
  EXPECT_TRUE(failures[1].missed_a_peer);
  EXPECT_EQ(failures[1].message, "") << "it is no reason that the worker gave";
}

TEST_F(NodeCoreOfTwo, TheCauseIsThatAfterTheReasonsAreRead) {
  run();
  const auto wanted = all<NodeCore::ReadReasons>(
      written(step({NodeCore::WorkersChanged{WorkerEnded{1, {Ending::Kind::exited, 1, false}},
                                             WorkerEnded{0, {Ending::Kind::exited, 1, false}}, TreeEmpty{}}})));
  ASSERT_EQ(wanted.size(), 1U);
  const Reasons reasons{{"RuntimeError: [gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:4012",
                         "ValueError: the batch is empty"},
                        {{"tail of 1"}, {"tail of 0"}}};
  const auto sent = all<NodeCore::SendRoundEnded>(step(NodeCore::ReasonsRead{wanted.front().number, reasons}));
  ASSERT_EQ(sent.size(), 1U);
  const auto& failures = sent.front().message.failures;
  ASSERT_EQ(failures.size(), 2U);
  EXPECT_EQ(failures[0].message, "ValueError: the batch is empty");
  EXPECT_THAT(failures[0].stderr_tail, ElementsAre("tail of 0"));
  EXPECT_TRUE(failures[1].missed_a_peer);
  EXPECT_TRUE(failures[1].stderr_tail.empty()) << "it can't be the cause";
}

TEST_F(NodeCoreOfTwo, FailuresAreToldWithTheErrorOfTheirTimes) {
  run();
  facts_.job_time_error = 7ms;
  const auto told = reports(fail());
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told.front().message.failures.at(0).job_time_error, 7ms);
}

TEST_F(NodeCoreOfTwo, ReachesTheStoreWhereMembershipSaysElseAtTheEndpointElseOnThisHost) {
  EXPECT_THAT(printed(hear(start(0))), HasSubstr("ranks 2 to 3 of 4, store at node0:4000"));
  auto elsewhere = start(1);
  elsewhere.master_address = "10.0.0.7";
  hear(elsewhere);
  EXPECT_EQ(core_.store_address(), "10.0.0.7");
  step(NodeCore::MembershipSaid{start(2), ""});
  EXPECT_EQ(core_.store_address(), "127.0.0.1");
}

TEST_F(NodeCoreOfTwo, WhatAnotherHostCanCauseIsPrintedWithALimit) {
  const auto lines = all<NodeCore::Print>(hear(start(0)));
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_TRUE(lines.front().is_limited);
  facts_.serves_endpoint = true;
  EXPECT_FALSE(all<NodeCore::Print>(hear(start(1))).front().is_limited);
}

TEST_F(NodeCoreOfTwo, WorkersAreSpawnedOnceTheirOutputIsOpen) {
  hear(rendezvous::Welcome{});
  EXPECT_TRUE(all<NodeCore::Spawn>(hear(start(0))).empty());
  const auto spawned = all<NodeCore::Spawn>(step(NodeCore::OutputOpened{}));
  ASSERT_EQ(spawned.size(), 1U);
  EXPECT_EQ(spawned.front().local_ranks, (std::vector{0, 1}));
  EXPECT_TRUE(all<NodeCore::Spawn>(step(NodeCore::OutputOpened{})).empty());
}

TEST_F(NodeCoreOfTwo, OutputThatTakesLongToOpenIsSaidOnce) {
  hear(rendezvous::Welcome{});
  hear(start(0));
  ASSERT_EQ(core_.next_deadline(), facts_.now + 10s);
  facts_.now += 10s;
  EXPECT_THAT(printed(core_.tick(facts_)), HasSubstr("log files of this round are still not open after 10 s"));
  EXPECT_FALSE(core_.next_deadline());
  EXPECT_EQ(all<NodeCore::Spawn>(step(NodeCore::OutputOpened{})).size(), 1U);

  EXPECT_FALSE(reports(step({NodeCore::WorkersChanged{WorkerEnded{0, {}}, WorkerEnded{1, {}}, TreeEmpty{}}})).empty());
  hear(start(1));
  step(NodeCore::OutputOpened{});
  EXPECT_FALSE(core_.next_deadline()) << "in time";
}

TEST_F(NodeCoreOfTwo, ARoundStoppedBeforeItsOutputIsOpenEndsAtOnceAndSpawnsNobody) {
  hear(rendezvous::Welcome{});
  hear(start(0));
  const auto actions = hear(rendezvous::StopRound{.round = 0, .signal_number = SIGTERM, .why = "rank 0 failed"});
  EXPECT_EQ(all<NodeCore::CloseOutput>(actions).size(), 1U);
  const auto ended = reports(actions);
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended.front().message.stopped, 2);
  EXPECT_TRUE(ended.front().message.failures.empty());
  EXPECT_TRUE(step(NodeCore::OutputOpened{}).empty());
  run(1);
}

TEST_F(NodeCoreOfTwo, ARoundStoppedBeforeItsOutputIsOpenDoesNotEndBeforeWhatIsLeftOfAnotherWorker) {
  ASSERT_EQ(reports(lose_second()).size(), 1U);
  ASSERT_EQ(all<NodeCore::OpenOutput>(hear(start(1))).size(), 1U);
  auto actions = step({NodeCore::WorkersChanged{WorkerEnded{0, {Ending::Kind::killed, SIGKILL, false}}}});
  EXPECT_TRUE(all<NodeCore::Spawn>(actions).empty());
  EXPECT_TRUE(reports(actions).empty()) << "it may have children";
  const auto ended = reports(step({NodeCore::WorkersChanged{OrphansGone{}, TreeEmpty{}}}));
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended.front().message.failures.size(), 1U);
}

// A worker that waited for a seat ended between the rounds.
class NodeCoreWithOrphans : public NodeCoreOfTwo {
 protected:
  void SetUp() override {
    ASSERT_EQ(reports(lose_second()).size(), 1U);
    EXPECT_EQ(all<KillOrphans>(step({NodeCore::WorkersChanged{WorkerEnded{0, {Ending::Kind::killed, SIGKILL, false}}}}))
                  .size(),
              1U);
    hear(start(1));
    EXPECT_TRUE(all<NodeCore::Spawn>(step(NodeCore::OutputOpened{})).empty());
  }
};

TEST_F(NodeCoreWithOrphans, NoWorkerIsSpawnedBesideWhatTheOneBeforeItHasLeft) {
  const auto spawned = all<NodeCore::Spawn>(step({NodeCore::WorkersChanged{OrphansGone{}}}));
  ASSERT_EQ(spawned.size(), 1U);
  EXPECT_EQ(spawned.front().local_ranks, (std::vector{0, 1}));
  EXPECT_FALSE(core_.next_deadline());
}

TEST_F(NodeCoreWithOrphans, TheRoundFailsIfWhatIsLeftCannotBeKilled) {
  ASSERT_EQ(core_.next_deadline(), facts_.now + 30s);
  facts_.now += 30s;
  const auto actions = core_.tick(facts_);
  EXPECT_TRUE(all<NodeCore::Spawn>(actions).empty());
  EXPECT_EQ(all<NodeCore::ForgetTree>(actions).size(), 1U) << "ddprun would wait for them at its end";
  ASSERT_EQ(all<NodeCore::PrintError>(actions).size(), 1U);
  EXPECT_FALSE(all<NodeCore::PrintError>(actions).front().is_report);
  EXPECT_EQ(sent<rendezvous::RoundFailed>(actions).size(), 1U);
  const auto ended = reports(actions);
  ASSERT_EQ(ended.size(), 1U);
  ASSERT_FALSE(ended.front().message.failures.empty());
  EXPECT_THAT(ended.front().message.failures.front().message, HasSubstr("can't be killed"));
}

TEST_F(NodeCoreWithOrphans, AStopMeanwhileSpawnsNobody) {
  const auto stopped = hear(rendezvous::StopRound{.round = 1, .signal_number = SIGTERM, .why = "rank 0 failed"});
  EXPECT_TRUE(all<NodeCore::Spawn>(stopped).empty());
  EXPECT_TRUE(all<NodeCore::Spawn>(step({NodeCore::WorkersChanged{OrphansGone{}, TreeEmpty{}}})).empty());
}

TEST_F(NodeCoreOfTwo, OutputThatCannotBeOpenedFailsItsWorkers) {
  hear(rendezvous::Welcome{});
  hear(start(0));
  const auto ended = reports(step(NodeCore::OutputOpened{"no space"}));
  ASSERT_EQ(ended.size(), 1U);
  ASSERT_EQ(ended.front().message.failures.size(), 2U);
  EXPECT_EQ(ended.front().message.failures.front().message, "no space");
}

TEST_F(NodeCoreOfTwo, WhyAWorkerCouldNotBeSpawnedIsToldOfThatRoundOnly) {
  hear(start(0));
  step(NodeCore::OutputOpened{});
  const auto wanted = all<NodeCore::ReadReasons>(written(step(NodeCore::SpawnFailed{"no such file", {0, 1}})));
  ASSERT_EQ(wanted.size(), 1U);
  auto ended = all<NodeCore::SendRoundEnded>(
      step(NodeCore::ReasonsRead{wanted.front().number, {{"another program's", ""}, {}}}));
  ASSERT_EQ(ended.size(), 1U);
  ASSERT_EQ(ended.front().message.failures.size(), 2U);
  EXPECT_EQ(ended.front().message.failures.front().message, "no such file");
  EXPECT_EQ(ended.front().message.failures.front().rank, 2);
  EXPECT_EQ(ended.front().message.failures.front().host, "b");

  run(1);
  ended = reports(step({NodeCore::WorkersChanged{WorkerEnded{0, {Ending::Kind::exited, 3, false}},
                                                 WorkerEnded{1, {Ending::Kind::exited, 3, false}}, TreeEmpty{}}}));
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended.front().message.failures.front().message, "") << "its own error file says why";
}

TEST_F(NodeCoreOfTwo, AFailureIsToldAtOnce) {
  run();
  const auto actions = step({NodeCore::WorkersChanged{WorkerEnded{0, {Ending::Kind::killed, SIGSEGV, false}}}});
  const auto failed = sent<rendezvous::RoundFailed>(actions);
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_THAT(failed.front().what.value(), HasSubstr("rank 2 was killed by SIGSEGV"));
  EXPECT_THAT(failed.front().what.value(), HasSubstr("on host b"));
  EXPECT_EQ(failed.front().job_time, 5s);
}

TEST_F(NodeCoreOfTwo, AFailureFromBeforeTheJobsClockBeganHasItsFirstTime) {
  run();
  step(NodeCore::WorkerSaid{0, worker_link::LinkHello{worker_link::kVersion, true, false}});
  step(NodeCore::WorkerSaid{0, worker_link::LinkLeft{0, {}, "gave up"}});  // told once nothing explains it
  facts_.now += 10s;
  facts_.job_time = 0ms;
  const auto failed = sent<rendezvous::RoundFailed>(core_.tick(facts_));
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_THAT(failed.front().what.value(), HasSubstr("(gave up)"));
  EXPECT_EQ(failed.front().job_time, 0ms);
}

TEST_F(NodeCoreOfTwo, TheErrorFileOfACauseIsOfThisNodeOnlyWhereItsRankIs) {
  rendezvous::FinishJob verdict;
  verdict.cause.emplace();  // rank 0 in round 0
  EXPECT_FALSE(all<NodeCore::TellCaller>(hear(verdict)).front().is_own) << "this node has had no round";
  NodeCore other({2, 2, 30s, 0ms, 0ms, "b"});
  static_cast<void>(other.step(NodeCore::MembershipSaid{start(0), "node0"}, facts_));
  verdict.cause->rank = 3;
  verdict.cause->local_rank = 1;
  const auto actions = other.step(NodeCore::MembershipSaid{verdict, "node0"}, facts_);
  EXPECT_TRUE(all<NodeCore::TellCaller>(actions).front().is_own);
}

TEST_F(NodeCoreOfTwo, AWorkerThatTakesNoSeatIsToldAndWhoGetsNoneHasLeft) {
  run();
  step(NodeCore::WorkerSaid{0, worker_link::LinkHello{worker_link::kVersion, true, false}});
  EXPECT_THAT(printed(step(NodeCore::WorkerLinkLost{0, LinkFault::does_not_read})),
              HasSubstr("rank 2: it does not read what ddprun tells it; it gets no new seat"));
  rendezvous::StopRound stop;
  stop.round = 0;
  stop.reseat = true;
  EXPECT_FALSE(all<SignalTree>(hear(stop)).empty()) << "none of the workers takes a seat";
}

TEST_F(NodeCoreOfTwo, OrphansAreStopped) {
  EXPECT_TRUE(step(NodeCore::Orphaned{"nobody answers"}).empty()) << "there are none";
  run();
  const auto actions = step(NodeCore::Orphaned{"nobody answers"});
  EXPECT_THAT(printed(actions), HasSubstr("nobody answers: both workers of this node are stopped"));
  EXPECT_EQ(all<SignalTree>(actions).front().signal_number, SIGTERM);
  const WorkerEnded stopped[] = {{0, {Ending::Kind::killed, SIGTERM, false}},
                                 {1, {Ending::Kind::killed, SIGTERM, false}}};
  const auto ended = reports(step({NodeCore::WorkersChanged{stopped[0], stopped[1], TreeEmpty{}}}));
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended.front().message.why_stopped, "nobody answers");
}

TEST_F(NodeCoreOfTwo, AClosedOutputStopsTheJobWithoutALine) {
  run();
  const auto actions = step(NodeCore::OutputClosed{});
  EXPECT_EQ(printed(actions), "");
  EXPECT_EQ(sent<rendezvous::StopAsked>(actions).front().signal_number, SIGPIPE);
}

TEST_F(NodeCoreOfTwo, WorkersAreAskedForAStepAndToldTheOneThatIsAgreedOn) {
  run();
  for (const int local_rank : {0, 1})
    step(NodeCore::WorkerSaid{local_rank, worker_link::LinkHello{worker_link::kVersion, false, true}});
  auto actions = hear(rendezvous::PrepareStop{0, false});
  EXPECT_EQ(all<NodeCore::SendToWorker>(actions).size(), 2U);
  step(NodeCore::WorkerSaid{0, worker_link::LinkStopReady{0, 7}});
  actions = step(NodeCore::WorkerSaid{1, worker_link::LinkStopReady{0, 9}});
  EXPECT_EQ(sent<rendezvous::StopReady>(actions).front().call, 9);
  actions = hear(rendezvous::StopAt{0, 9, SIGTERM});
  EXPECT_EQ(std::get<worker_link::LinkStopAt>(all<NodeCore::SendToWorkers>(actions).front().message).call, 9);
  EXPECT_THAT(printed(actions), HasSubstr("both workers stop at call 9 of should_stop()"));
}

// A node of two, which may leave its job at SIGTERM.
class NodeCoreWithTimeLimit : public NodeCoreOfTwo {
 protected:
  NodeCoreWithTimeLimit() {
    NodeOptions options{2, 2, 30s, 0ms, 0ms, "b", true};
    options.time_limit = 60s;
    options.time_is_over_at = facts_.now + 60s;
    core_ = NodeCore(options);
  }
  Actions tick_after(std::chrono::milliseconds time) {
    facts_.now += time;
    return core_.tick(facts_);
  }
};

TEST_F(NodeCoreWithTimeLimit, StopsTheWholeJobOnceTheTimeIsOver) {
  run();
  EXPECT_EQ(core_.next_deadline(), facts_.now + 60s);
  EXPECT_TRUE(tick_after(60s - 1ms).empty());
  const auto actions = tick_after(1ms);
  EXPECT_THAT(printed(actions), HasSubstr("the time limit of 60 s is over (--timeout): stopping both workers"));
  ASSERT_EQ(sent<rendezvous::StopAsked>(actions).size(), 1U);
  const rendezvous::StopAsked asked{.signal_number = SIGTERM, .time_limit = 60s};
  EXPECT_EQ(sent<rendezvous::StopAsked>(actions).front(), asked) << "this node does not leave";
  EXPECT_TRUE(sent<rendezvous::StopAsked>(tick_after(1s)).empty()) << "asked once";
  const auto second = sent<rendezvous::StopAsked>(step(NodeCore::StopSignalled{SIGTERM}));
  ASSERT_EQ(second.size(), 1U);
  EXPECT_EQ(second.front(), asked) << "a second wish keeps the reason";
}

TEST_F(NodeCoreWithTimeLimit, EndsANodeThatHasMetNobody) {
  facts_.is_joined = false;
  const auto actions = tick_after(60s);
  EXPECT_EQ(exit_codes(actions), std::vector{124});
  const auto errors = all<NodeCore::PrintError>(step(NodeCore::Delivered{}));
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_THAT(errors.front().error.what, HasSubstr("the time limit of 60 s is over"));
  EXPECT_FALSE(core_.next_deadline());
}

TEST_F(NodeCoreWithTimeLimit, ChangesNothingOnceAnotherStopHasBegun) {
  run();
  step(NodeCore::StopSignalled{SIGTERM});
  const auto actions = tick_after(60s);
  EXPECT_TRUE(sent<rendezvous::StopAsked>(actions).empty());
  EXPECT_EQ(printed(actions), "");
  const auto second = sent<rendezvous::StopAsked>(step(NodeCore::StopSignalled{SIGTERM}));
  ASSERT_EQ(second.size(), 1U);
  EXPECT_TRUE(second.front().leaves) << "it goes on leaving";
  EXPECT_EQ(second.front().time_limit, std::nullopt);
  EXPECT_NE(core_.next_deadline(), facts_.now) << "no timer that fires for ever";
}

TEST_F(NodeCoreOfTwo, ASigtermAsksToLeaveIfTheNodeMayLeave_AndOtherSignalsStopTheJob) {
  for (const int signal_number : {SIGTERM, SIGINT})
    for (const bool may_leave : {true, false}) {
      NodeCore core({2, 2, 30s, 0ms, 0ms, "b", may_leave});
      const auto asked = sent<rendezvous::StopAsked>(core.step(NodeCore::StopSignalled{signal_number}, facts_));
      ASSERT_EQ(asked.size(), 1U);
      EXPECT_EQ(asked.front().leaves, may_leave && signal_number == SIGTERM) << signal_number;
    }
}

TEST_F(NodeCoreOfTwo, WarningAsksToLeaveIfTheNodeMayLeave) {
  for (const bool may_leave : {true, false}) {
    NodeCore core({2, 2, 30s, 0ms, 0ms, "b", may_leave});
    const auto asked = sent<rendezvous::StopAsked>(core.step(NodeCore::WarningSignalled{SIGUSR1}, facts_));
    ASSERT_EQ(asked.size(), 1U);
    EXPECT_TRUE(asked.front().is_warning);
    EXPECT_EQ(asked.front().leaves, may_leave);
  }
}

TEST_F(NodeCoreOfTwo, ANodeThatHasLeftSaysSoAndEndsAsTold) {
  rendezvous::FinishJob verdict;
  verdict.exit_code = 143;
  verdict.has_left = true;
  EXPECT_THAT(exit_codes(hear(verdict)), ElementsAre(143));
  EXPECT_THAT(printed(step(NodeCore::Delivered{})), HasSubstr("has left the job, which goes on without it"));
}

TEST_F(NodeCoreOfTwo, WorkersOfARoundThatIsGivenUpDoNotLiveOn) {
  run();
  for (const int local_rank : {0, 1})
    step(NodeCore::WorkerSaid{local_rank, worker_link::LinkHello{worker_link::kVersion, true, true}});
  EXPECT_EQ(all<SignalTree>(step(NodeCore::Orphaned{"another host goes on", false})).size(), 1U);
}

TEST_F(NodeCoreOfTwo, WorkersThatCanTakeASeatLiveOnWhileTheNodeLooksForTheOthers) {
  run();
  for (const int local_rank : {0, 1})
    step(NodeCore::WorkerSaid{local_rank, worker_link::LinkHello{worker_link::kVersion, true, true}});
  const auto actions = step(NodeCore::Orphaned{"nobody answers", true});
  EXPECT_TRUE(all<SignalTree>(actions).empty());
  ASSERT_EQ(all<NodeCore::SendToWorker>(actions).size(), 2U);
  EXPECT_TRUE(std::holds_alternative<worker_link::LinkRoundOver>(all<NodeCore::SendToWorker>(actions).front().message));
}

// That of one that has ended counts too: the others may be as far.
TEST_F(NodeCoreOfTwo, WhatAWorkerAnsweredAndDidBeforeItsEndStillCounts) {
  run();
  for (const int local_rank : {0, 1})
    step(NodeCore::WorkerSaid{local_rank, worker_link::LinkHello{worker_link::kVersion, false, true}});
  EXPECT_TRUE(sent<rendezvous::FirstStep>(
                  step(NodeCore::WorkerSaid{0, worker_link::LinkProgress{.round = 0, .has_stepped = true}}))
                  .empty());
  hear(rendezvous::PrepareStop{0, false});
  step(NodeCore::WorkerSaid{0, worker_link::LinkStopReady{0, 9}});
  step({NodeCore::WorkersChanged{WorkerEnded{0, {}}}});
  EXPECT_EQ(sent<rendezvous::FirstStep>(
                step(NodeCore::WorkerSaid{1, worker_link::LinkProgress{.round = 0, .has_stepped = true}}))
                .size(),
            1U);
  const auto actions = step(NodeCore::WorkerSaid{1, worker_link::LinkStopReady{0, 8}});
  ASSERT_EQ(sent<rendezvous::StopReady>(actions).size(), 1U);
  EXPECT_EQ(sent<rendezvous::StopReady>(actions).front().call, 9);
}

TEST_F(NodeCoreOfTwo, WhoServesTheEndpointWaitsForTheThirdStop) {
  facts_.serves_endpoint = true;
  for (const int stop : {1, 2, 3})
    EXPECT_EQ(exit_codes(step(NodeCore::StopSignalled{SIGTERM})).empty(), stop < 3) << stop;
}

TEST_F(NodeCoreOfTwo, AVerdictEndsTheWorkersThatAreLeftFirst) {
  run();
  rendezvous::FinishJob verdict;
  verdict.exit_code = 9;
  auto actions = hear(verdict);
  EXPECT_TRUE(exit_codes(actions).empty());
  EXPECT_FALSE(all<SignalTree>(actions).empty());
  actions =
      written(step({NodeCore::WorkersChanged{WorkerEnded{0, {Ending::Kind::killed, SIGTERM, false}},
                                             WorkerEnded{1, {Ending::Kind::killed, SIGTERM, false}}, TreeEmpty{}}}));
  EXPECT_EQ(exit_codes(actions), std::vector{9});
  EXPECT_TRUE(core_.is_finished());
  EXPECT_FALSE(core_.next_deadline());
}

TEST_F(NodeCoreOfTwo, WhatMembershipSaysOfAnotherRoundIsPassedOver) {
  run(3);
  rendezvous::StopRound stop;
  stop.round = 2;
  EXPECT_TRUE(all<SignalTree>(hear(stop)).empty());
  stop.round = 3;
  EXPECT_EQ(all<SignalTree>(hear(stop)).size(), 1U);
}

TEST_F(NodeCoreOfTwo, TheLossOfMembershipEndsTheWorkersAndThenTheNode) {
  run();
  auto actions = step(NodeCore::MembershipLost{{"nobody answers", "there", "this"}});
  EXPECT_THAT(printed(actions), HasSubstr("nobody answers: both workers of this node are stopped"));
  EXPECT_TRUE(all<NodeCore::PrintError>(actions).empty()) << "what the workers print comes first";
  EXPECT_FALSE(all<NodeCore::SetFarewell>(actions).front().is_wanted);
  EXPECT_TRUE(exit_codes(actions).empty());
  actions = step(NodeCore::MembershipLost{{"nobody answers", "there", "this"}});
  EXPECT_TRUE(actions.empty()) << "told once";
  actions =
      written(step({NodeCore::WorkersChanged{WorkerEnded{0, {Ending::Kind::killed, SIGTERM, false}},
                                             WorkerEnded{1, {Ending::Kind::killed, SIGTERM, false}}, TreeEmpty{}}}));
  EXPECT_EQ(exit_codes(actions), std::vector{rendezvous::kRendezvousFailed});
  EXPECT_EQ(all<NodeCore::PrintError>(step(NodeCore::Delivered{})).size(), 1U);
}

TEST_F(NodeCoreOfTwo, TheErrorIsPrintedLastAfterTheReportAndWhatThisNodeWritesAtItsEnd) {
  auto first = start(0);
  first.group_rank = 0;
  run(first);
  rendezvous::FinishJob verdict;
  verdict.exit_code = 3;
  verdict.cause.emplace();
  verdict.report.emplace().rounds_count = 2;
  verdict.report->rounds.resize(2);
  EXPECT_EQ(printed(hear(verdict)), "") << "its workers still run";
  const auto actions = written(step({NodeCore::WorkersChanged{WorkerEnded{0, {}}, WorkerEnded{1, {}}, TreeEmpty{}}}));
  EXPECT_EQ(exit_codes(actions), std::vector{3});
  EXPECT_EQ(printed(actions), "") << "its files are still to be written";
  std::vector<std::string> order;
  for (const auto& action : step(NodeCore::Delivered{})) {
    if (const auto* text = std::get_if<NodeCore::PrintText>(&action))
      order.push_back((text->is_report ? "report " : "") + text->text.substr(0, 6));
    if (std::holds_alternative<NodeCore::PrintLogFolder>(action)) order.emplace_back("folder");
  }
  EXPECT_THAT(order, ::testing::ElementsAre("ddprun", "folder", "report error:"));
}

TEST(NodeCoreEvents, WordsOfWorkersComeBeforeTheEndOfAWorkerAndBeforeAStop) {
  const struct {
    const char* what;
    NodeCore::Event event;
    bool want;
  } cases[] = {{"start", NodeCore::WorkersChanged{WorkerStarted{0}}, false},
               {"end", NodeCore::WorkersChanged{WorkerStarted{0}, WorkerEnded{1, {}}}, true},
               {"stop of the round", NodeCore::MembershipSaid{rendezvous::StopRound{}}, true},
               {"start of a round", NodeCore::MembershipSaid{rendezvous::StartRound{}}, false},
               {"word", NodeCore::WorkerSaid{0, worker_link::LinkStopping{0}}, false}};
  for (const auto& c : cases) EXPECT_EQ(comes_after_words_of_workers(c.event), c.want) << c.what;
}

TEST_F(NodeCoreOfTwo, EveryNodeSaysAtTheEndWhereItsLogFilesAre) {
  auto second = start(0);
  second.group_rank = 1;
  run(second);
  hear(rendezvous::FinishJob{});
  written(step({NodeCore::WorkersChanged{WorkerEnded{0, {}}, WorkerEnded{1, {}}, TreeEmpty{}}}));
  EXPECT_EQ(all<NodeCore::PrintLogFolder>(step(NodeCore::Delivered{})).size(), 1U);
}

TEST_F(NodeCoreOfTwo, AStopWhileNobodyHearsItEndsTheNodeWithItsSignal) {
  hear(rendezvous::Welcome{});
  facts_.is_joined = false;
  const auto actions = step(NodeCore::StopSignalled{SIGINT, " from pid 7 (uid 0)"});
  EXPECT_EQ(exit_codes(actions), std::vector{128 + SIGINT});
  EXPECT_THAT(printed(actions), HasSubstr("SIGINT from pid 7 (uid 0): stopping"));
  const auto last = step(NodeCore::Delivered{});
  EXPECT_EQ(last.size(), 1U);
  EXPECT_EQ(all<NodeCore::PrintLogFolder>(last).size(), 1U);
  EXPECT_EQ(all<NodeCore::Quit>(step(NodeCore::StopSignalled{SIGINT})).size(), 1U) << "only its output was left";
}

TEST_F(NodeCoreOfTwo, AStopThatOthersHearWaitsForTheVerdict) {
  hear(rendezvous::Welcome{});
  hear(rendezvous::OpenStore{{1, 0, 0}, {}, true});
  auto actions = step(NodeCore::StopSignalled{SIGTERM});
  EXPECT_TRUE(exit_codes(actions).empty());
  EXPECT_EQ(sent<rendezvous::StopAsked>(actions).size(), 1U);
  actions = step(NodeCore::StopSignalled{SIGTERM});
  EXPECT_EQ(exit_codes(actions), std::vector{128 + SIGTERM}) << "the second time it waits no more";
}

TEST_F(NodeCoreOfTwo, ASecondSignalDoesNotKeepTheVerdictFromTheOthers) {
  facts_.serves_endpoint = true;
  EXPECT_EQ(exit_codes(hear(rendezvous::FinishJob{})), std::vector{0});
  EXPECT_TRUE(step(NodeCore::StopSignalled{SIGINT}).empty());
  EXPECT_EQ(all<NodeCore::Quit>(step(NodeCore::Delivered{})).size(), 1U) << "it does not wait for output";
}

TEST_F(NodeCoreOfTwo, TheOthersHearWhyTheNodeLeavesWithItsGuardian) {
  run();
  const auto told = sent<rendezvous::Leaving>(step(NodeCore::GuardianEnded{{Ending::Kind::killed, SIGKILL, false}, 7}));
  ASSERT_EQ(told.size(), 1U) << "before its output is written";
  EXPECT_EQ(told.front().why, "its guardian process was killed by SIGKILL");
  EXPECT_EQ(told.front().exit_code, 128 + SIGKILL);
}

TEST_F(NodeCoreOfTwo, ANodeWithProcessesLeftDoesNotSayThatItLeaves) {
  run();
  const NodeCore::GuardianEnded ended{{Ending::Kind::killed, SIGKILL, false}, 7, true};
  EXPECT_TRUE(sent<rendezvous::Leaving>(step(ended)).empty());
}

TEST_F(NodeCoreOfTwo, TheHostOfMembershipTellsItToo_SoThatTheOthersHearOfIt) {
  run();
  facts_.serves_endpoint = true;
  const auto actions = step(NodeCore::GuardianEnded{{Ending::Kind::killed, SIGKILL, false}, 7});
  EXPECT_EQ(sent<rendezvous::Leaving>(actions).size(), 1U);
}

TEST_F(NodeCoreOfTwo, TheEndOfTheGuardianIsTheEndOfTheNode) {
  run();
  const auto actions = written(step(NodeCore::GuardianEnded{{Ending::Kind::killed, SIGKILL, false}, 77}));
  EXPECT_EQ(exit_codes(actions), std::vector{128 + SIGKILL});
  const auto errors = all<NodeCore::PrintError>(step(NodeCore::Delivered{}));
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_THAT(errors.front().error.where, HasSubstr("pid 77"));
}

TEST_F(NodeCoreOfTwo, AStoreForMoreThanNodesIsRefused) {
  rendezvous::OpenStore open{{1, 0, 0}, {"10.0.0.1", "everybody"}, true};
  EXPECT_EQ(exit_codes(hear(open)), std::vector{rendezvous::kRendezvousFailed});
}

TEST_F(NodeCoreOfTwo, TheAddressesOfAStoreMayComeInParts) {
  EXPECT_TRUE(all<NodeCore::BeginStore>(hear(rendezvous::OpenStore{{1, 0, 0}, {"10.0.0.1"}, false})).empty());
  const auto opened = all<NodeCore::BeginStore>(hear(rendezvous::OpenStore{{1, 0, 0}, {"10.0.0.2"}, true}));
  ASSERT_EQ(opened.size(), 1U);
  EXPECT_EQ(opened.front().users.size(), 2U);
  EXPECT_EQ(sent<rendezvous::StoreOpened>(step(NodeCore::StoreIsOpen{{1, 0, 0}, 4000})).front().port, 4000);
  // Those of a round that was given up are not users of the next one's.
  hear(rendezvous::OpenStore{{1, 0, 1}, {"10.0.0.3"}, false});
  EXPECT_EQ(all<NodeCore::BeginStore>(hear(rendezvous::OpenStore{{1, 0, 2}, {"10.0.0.4"}, true})).front().users.size(),
            1U);
}

TEST_F(NodeCoreOfTwo, CtrlZSuspendsNoJobOfSeveralNodes) {
  auto actions = step(NodeCore::SuspendSignalled{});
  EXPECT_TRUE(all<SignalTree>(actions).empty());
  EXPECT_THAT(printed(actions), HasSubstr("ctrl-z suspends no job of several nodes"));
  EXPECT_TRUE(step(NodeCore::TreeHasSignal{SIGSTOP}).empty());
}

TEST(NodeCoreAlone, CtrlZSuspendsTheWorkersThenDdprunUnlessItWasContinuedMeanwhile) {
  NodeCore core({2, 1, 30s, 0ms, 0ms, "a"});
  const NodeCore::Facts facts{TimePoint(100s), 5s, true, true};
  EXPECT_EQ(all<SignalTree>(core.step(NodeCore::SuspendSignalled{}, facts)).front().signal_number, SIGSTOP);
  EXPECT_EQ(all<NodeCore::SuspendProcess>(core.step(NodeCore::TreeHasSignal{SIGSTOP}, facts)).size(), 1U);
  EXPECT_EQ(all<SignalTree>(core.step(NodeCore::ContinueSignalled{}, facts)).front().signal_number, SIGCONT);
  EXPECT_TRUE(core.step(NodeCore::TreeHasSignal{SIGSTOP}, facts).empty());
}

TEST(NodeCoreAlone, AnErrorBeforeAnyWorkerRanEndsDdprunAsWrongInputDoes) {
  const NodeCore::Facts facts{TimePoint(100s), 5s, true, true};
  rendezvous::StartRound start;
  start.round = {1, 0, 0};
  for (const bool has_one_started : {false, true}) {
    NodeCore core({2, 1, 30s, 0ms, 0ms, "a"});
    static_cast<void>(core.step(NodeCore::MembershipSaid{start, "a"}, facts));
    static_cast<void>(core.step(NodeCore::OutputOpened{}, facts));
    const auto failed = has_one_started ? std::vector{1} : std::vector{0, 1};
    const auto actions = core.step(NodeCore::SpawnFailed{"no log directory", failed}, facts);
    EXPECT_EQ(all<NodeCore::Rethrow>(actions).size(), has_one_started ? 0U : 1U);
  }
  NodeCore core({1, 1, 30s, 0ms, 0ms, "a"});
  static_cast<void>(core.step(NodeCore::MembershipSaid{start, "a"}, facts));
  static_cast<void>(core.step(NodeCore::OutputOpened{}, facts));
  static_cast<void>(core.step({NodeCore::WorkersChanged{WorkerStarted{0}}}, facts));
  static_cast<void>(
      core.step({NodeCore::WorkersChanged{WorkerEnded{0, {Ending::Kind::exited, 1, false}}, TreeEmpty{}}}, facts));
  start.round.number = 1;
  static_cast<void>(core.step(NodeCore::MembershipSaid{start, "a"}, facts));
  static_cast<void>(core.step(NodeCore::OutputOpened{}, facts));
  EXPECT_TRUE(all<NodeCore::Rethrow>(core.step(NodeCore::SpawnFailed{"no log directory", {0}}, facts)).empty());
}

}  // namespace
}  // namespace ddp::launcher
