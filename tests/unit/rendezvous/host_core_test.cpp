#include "rendezvous/host/host_core.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <optional>
#include <string>

#include "tests/unit/actions_of.hpp"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;
using testing::all;
using ::testing::HasSubstr;

using Actions = HostCore::Actions;

template <class Message>
int told(const Actions& actions) {
  int count = 0;
  for (const auto& tell : all<HostCore::Tell>(actions)) count += std::holds_alternative<Message>(tell.message);
  return count;
}

std::string key_of(int number) {
  const auto digits = std::to_string(number);
  return std::string(32 - digits.size(), '0') + digits;
}

// An agent that serves the endpoint of a job of two nodes, which it is one of.
class HostOfTwo : public ::testing::Test {
 protected:
  static MembershipOptions options() {
    MembershipOptions out;
    out.run_id = "job";
    out.nodes_min = out.nodes_max = 2;
    out.holds_endpoint = true;
    out.term = {1700000000, 7, 0};
    out.nonce = [] { return std::string(32, 'a'); };
    return out;
  }

  static Hello hello(int number, const std::string& run_id = "job") {
    Hello out;
    out.run_id = run_id;
    out.node_key = key_of(number);
    out.host_name = "h" + std::to_string(number);
    out.nodes_min = out.nodes_max = 2;
    return out;
  }

  // Another host of the job, or of another one, calls.
  static Hello call(const std::string& run_id = "job") {
    auto out = hello(7, run_id);
    out.is_host = true;
    out.standby_port = 5007;
    return out;
  }

  Actions step(const HostCore::Event& event) { return core_.step(event, now_); }

  NodeId come(const Hello& hello, Actions* actions = nullptr) {
    const auto node = core_.new_node();
    auto out = step(HostCore::Came{node, hello, "10.0.0.2"});
    if (actions != nullptr) *actions = std::move(out);
    return node;
  }

  TimePoint now_{1000s};
  HostCore core_{options(), true, now_};
};

TEST_F(HostOfTwo, WelcomesTheNodesOfItsJobAndItsOwnAgent) {
  const auto own = step(HostCore::OwnAgentSaid{hello(0)});
  ASSERT_FALSE(all<HostCore::TellOwnAgent>(own).empty());
  EXPECT_TRUE(std::holds_alternative<Welcome>(all<HostCore::TellOwnAgent>(own).front().message));
  now_ += 3s;
  Actions actions;
  come(hello(1), &actions);
  ASSERT_EQ(told<Welcome>(actions), 1);
  EXPECT_EQ(std::get<Welcome>(all<HostCore::Tell>(actions).front().message).job_time, 3s);
}

TEST_F(HostOfTwo, TellsTheTimeToANodeThatAsksForIt) {
  step(HostCore::OwnAgentSaid{hello(0)});
  const auto node = come(hello(1));
  now_ += 1234ms;
  const auto actions = step(Heard{node, TimeAsked{7}});
  ASSERT_EQ(actions.size(), 1U);
  EXPECT_EQ(all<HostCore::Tell>(actions).at(0).message, ToAgent(TimeTold{7, 1234ms}));
}

TEST_F(HostOfTwo, SpeaksTheHighestVersionThatBothSpeak) {
  HostCore host(options(), true, now_, {2, 4});
  const auto own = host.step(HostCore::OwnAgentSaid{hello(0)}, now_);
  EXPECT_EQ(std::get<Welcome>(all<HostCore::TellOwnAgent>(own).front().message).version, 4);
  auto node = hello(1);
  node.versions = {1, 3};
  const auto actions = host.step(HostCore::Came{host.new_node(), node, "10.0.0.2"}, now_);
  ASSERT_EQ(told<Welcome>(actions), 1);
  const auto welcome = std::get<Welcome>(all<HostCore::Tell>(actions).front().message);
  EXPECT_EQ(welcome.version, 3);
  EXPECT_EQ(welcome.versions, (VersionRange{2, 4}));
}

TEST_F(HostOfTwo, RefusesANodeWithoutACommonVersionAndSaysWhichSideToUpgrade) {
  const struct {
    bool has_own_agent;
    VersionRange node;
    const char* try_this;
  } cases[] = {{true, {1, 1}, "upgrade ddprun on host h1"},
               {false, {1, 1}, "upgrade ddprun on host h1"},
               {true, {5, 6}, "upgrade ddprun at the endpoint"},
               {false, {5, 6}, "upgrade ddp-rendezvous at the endpoint"}};
  for (const auto& c : cases) {
    HostCore host(options(), c.has_own_agent, now_, {2, 4});
    auto node = hello(1);
    node.versions = c.node;
    const auto actions = host.step(HostCore::Came{host.new_node(), node, "10.0.0.2"}, now_);
    ASSERT_EQ(told<Refused>(actions), 1);
    EXPECT_EQ(told<Welcome>(actions), 0);
    EXPECT_EQ(std::get<Refused>(all<HostCore::Tell>(actions).front().message).try_this, c.try_this);
    EXPECT_EQ(all<HostCore::Close>(actions).size(), 1U);
    ASSERT_EQ(all<HostCore::Print>(actions).size(), 1U);
    EXPECT_THAT(all<HostCore::Print>(actions).front().line, HasSubstr("host h1 (10.0.0.2) was refused: ddprun on"));
    EXPECT_EQ(all<HostCore::Print>(actions).front().node, all<HostCore::Tell>(actions).front().node);
    EXPECT_TRUE(host.membership().is_empty());
  }
}

TEST_F(HostOfTwo, LinesAboutANodeThatMembershipRefusesNameIt) {
  auto of_three = hello(1);
  of_three.nodes_min = of_three.nodes_max = 3;
  Actions actions;
  const auto node = come(of_three, &actions);
  EXPECT_EQ(told<Refused>(actions), 1);
  ASSERT_EQ(all<HostCore::Print>(actions).size(), 1U);
  EXPECT_EQ(all<HostCore::Print>(actions).front().node, node);
}

TEST_F(HostOfTwo, RefusesOtherJobsAndEndsTheirConnectionsOnceTheyHaveBeenTold) {
  Actions actions;
  const auto node = come(hello(1, "another"), &actions);
  EXPECT_EQ(told<Refused>(actions), 1);
  EXPECT_EQ(told<Welcome>(actions), 0);
  ASSERT_EQ(all<HostCore::Close>(actions).size(), 1U);
  EXPECT_EQ(all<HostCore::Close>(actions).front().node, node);
  EXPECT_TRUE(step(Heard{node, StopAsked{15}}).empty()) << "it is not heard any more";
}

TEST_F(HostOfTwo, KeepsAtMost256RefusedConnectionsOpen) {
  const auto first = come(hello(1, "another"));
  Actions actions;
  for (int number = 2; number <= 256; ++number) {
    come(hello(number, "another"), &actions);
    ASSERT_TRUE(all<HostCore::Drop>(actions).empty()) << number;
  }
  come(hello(257, "another"), &actions);
  ASSERT_EQ(all<HostCore::Drop>(actions).size(), 1U);
  EXPECT_EQ(all<HostCore::Drop>(actions).front().node, first);
}

TEST_F(HostOfTwo, TakesSoManySparesAndNoMore) {
  Actions actions;
  for (int number = 1; number <= 258; ++number) {
    come(hello(number), &actions);
    ASSERT_EQ(told<Refused>(actions), 0) << number;
  }
  come(hello(259), &actions);
  ASSERT_EQ(told<Refused>(actions), 1);
  EXPECT_THAT(std::get<Refused>(all<HostCore::Tell>(actions).front().message).what,
              HasSubstr("258 nodes and spares already"));
}

TEST_F(HostOfTwo, StepsAsideForAHostThatHasARoundWhereItHasNone) {
  static_cast<void>(step(HostCore::OwnAgentSaid{hello(0)}));
  Actions actions;
  come(call("other"), &actions);
  EXPECT_TRUE(all<HostCore::StepDown>(actions).empty());
  EXPECT_EQ(all<HostCore::Close>(actions).size(), 1U);
  come(call(), &actions);
  ASSERT_EQ(all<HostCore::StepDown>(actions).size(), 1U);
  const auto down = all<HostCore::StepDown>(actions).front();
  EXPECT_EQ(down.other_host, (Elsewhere{"10.0.0.2", 5007}));
  EXPECT_EQ(down.why, "host h7 (10.0.0.2) serves the job already");
}

TEST_F(HostOfTwo, TakesACallerForNoNodeAndGoesOnWithItsOwnRound) {
  static_cast<void>(step(HostCore::OwnAgentSaid{hello(0)}));
  const auto actions_of_join = [&] {
    Actions actions;
    come(hello(1), &actions);
    return actions;
  }();
  ASSERT_EQ(told<Welcome>(actions_of_join), 1);
  static_cast<void>(step(HostCore::OwnAgentSaid{StoreOpened{0, 4000}}));
  ASSERT_EQ(core_.membership().phase_name(), "running");
  Actions actions;
  come(call(), &actions);
  EXPECT_TRUE(all<HostCore::StepDown>(actions).empty());
  EXPECT_EQ(told<Welcome>(actions), 0);
  EXPECT_EQ(all<HostCore::Close>(actions).size(), 1U);
  EXPECT_EQ(core_.membership().summary().node_count, 2U);
}

TEST_F(HostOfTwo, TellsACallerWithAnOlderRoundThatTheJobGoesOnHere) {
  auto its = options();
  its.restarts_max = 1;
  HostCore core(its, true, now_);
  const auto says = [&](const HostCore::Event& event) { return core.step(event, now_); };
  auto own = hello(0), other = hello(1), caller = call();
  own.restarts_max = other.restarts_max = caller.restarts_max = 1;
  says(HostCore::OwnAgentSaid{own});
  const auto node = core.new_node();
  says(HostCore::Came{node, other, "10.0.0.2"});
  says(HostCore::OwnAgentSaid{StoreOpened{0, 4000}});
  caller.held = Held{core.membership().last_round(), 1, 2, 0, true, false, {std::string(32, 'a')}};
  const auto calls = [&] { return says(HostCore::Came{core.new_node(), caller, "10.0.0.3"}); };
  EXPECT_EQ(told<StopRound>(calls()), 0) << "no newer round has begun here";

  FailureReport failure;
  failure.ending = {Ending::Kind::killed, SIGKILL, false};
  says(HostCore::OwnAgentSaid{RoundEnded{0, {failure}, 0, false}});
  says(Heard{node, RoundEnded{0, {}, 1, false}});
  says(HostCore::OwnAgentSaid{StoreOpened{1, 4000}});
  ASSERT_EQ(core.membership().summary().round, 1);
  const auto actions = calls();
  ASSERT_EQ(told<StopRound>(actions), 1);
  const auto answer = std::get<StopRound>(all<HostCore::Tell>(actions).front().message);
  EXPECT_EQ(answer.round, 0U);
  EXPECT_TRUE(answer.is_left_behind && answer.reseat);
  EXPECT_EQ(answer.proof, std::string(16, '0') + std::string(16, 'a'));
  EXPECT_EQ(all<HostCore::Close>(actions).size(), 1U);
  caller.held->nonces = {std::string(16, 'a') + std::string(16, '0')};
  EXPECT_EQ(told<StopRound>(calls()), 1) << "half of the nonce";

  caller.held->nonces = {std::string(32, 'b')};
  EXPECT_EQ(told<StopRound>(calls()), 0) << "it was in no round here";
}

TEST_F(HostOfTwo, StepsDownIfItsCallIsAnsweredThatTheJobGoesOnThere) {
  const Elsewhere there{"10.0.0.9", 29400};
  const std::string nonce = "0123456789abcdef" + std::string(16, 'f');
  StopRound answer{3, SIGTERM, false, true, {}, {}, true};
  answer.proof = answer_proof(nonce);
  for (const bool has_newer_round : {false, true}) {
    HostCore core(options(), true, now_);
    auto own = hello(0);
    if (!has_newer_round) own.held = Held{{1690000000, 1, 3}, 0, 2, 0, true, false, {nonce}};
    static_cast<void>(core.step(HostCore::OwnAgentSaid{own}, now_));
    if (has_newer_round) {
      static_cast<void>(core.step(HostCore::Came{core.new_node(), hello(1), "10.0.0.2"}, now_));
      static_cast<void>(core.step(HostCore::OwnAgentSaid{StoreOpened{0, 4000}}, now_));
    }
    answer.is_left_behind = false;
    EXPECT_TRUE(all<HostCore::StepDown>(core.step(HostCore::CallAnswered{answer, there}, now_)).empty());
    answer.is_left_behind = true;
    const auto down = all<HostCore::StepDown>(core.step(HostCore::CallAnswered{answer, there}, now_));
    ASSERT_EQ(down.size(), has_newer_round ? 0U : 1U);
    if (has_newer_round) continue;
    EXPECT_EQ(down.front().other_host, there);
    EXPECT_FALSE(down.front().is_round_given_up) << "what its workers have kept is worth taking along";
  }
}

// It has heard the call, and so one half of the nonces.
TEST_F(HostOfTwo, DoesNotStepDownForAStrangerThatAnswersItsCall) {
  const std::string nonce = "0123456789abcdef" + std::string(16, 'f');
  auto own = hello(0);
  own.held = Held{{1690000000, 1, 3}, 0, 2, 0, true, false, {nonce}};
  static_cast<void>(step(HostCore::OwnAgentSaid{own}));
  StopRound answer{3, SIGTERM, false, true, {}, {}, true};
  for (const auto& proof : {std::string(), call_proof(nonce), std::string(32, '0')}) {
    answer.proof = proof;
    EXPECT_TRUE(all<HostCore::StepDown>(step(HostCore::CallAnswered{answer, {"10.0.0.9", 29400}})).empty()) << proof;
  }
}

TEST_F(HostOfTwo, EndsAConnectionThatSaysHelloTwice) {
  const auto node = come(hello(1));
  const auto actions = step(Heard{node, hello(1)});
  ASSERT_EQ(all<HostCore::Drop>(actions).size(), 1U);
  EXPECT_EQ(all<HostCore::Drop>(actions).front().node, node);
}

TEST_F(HostOfTwo, FinishesOnceEveryConnectionHasEnded) {
  const auto one = come(hello(1)), two = come(hello(2));
  auto actions = step(HostCore::OwnAgentFinished{});
  EXPECT_EQ(all<HostCore::Close>(actions).size(), 2U);
  EXPECT_TRUE(all<HostCore::Finish>(actions).empty());
  EXPECT_TRUE(all<HostCore::Finish>(step(HostCore::Ended{one})).empty());
  EXPECT_EQ(all<HostCore::Finish>(step(HostCore::Ended{two})).size(), 1U);
  EXPECT_FALSE(core_.next_deadline());
}

TEST_F(HostOfTwo, WaitsFiveSecondsForAConnectionThatDoesNotEnd) {
  const auto node = come(hello(1));
  static_cast<void>(step(HostCore::OwnAgentFinished{}));
  ASSERT_EQ(core_.next_deadline(), now_ + 5s);
  now_ += 4999ms;
  EXPECT_TRUE(core_.tick(now_).empty());
  now_ += 1ms;
  const auto actions = core_.tick(now_);
  ASSERT_EQ(all<HostCore::Drop>(actions).size(), 1U);
  EXPECT_EQ(all<HostCore::Drop>(actions).front().node, node);
  EXPECT_EQ(all<HostCore::Finish>(actions).size(), 1U);
  EXPECT_TRUE(core_.tick(now_ + 1h).empty());
}

TEST_F(HostOfTwo, FinishesAtOnceWhereNobodyIsConnectedAndWelcomesNobodyThen) {
  EXPECT_EQ(all<HostCore::Finish>(step(HostCore::OwnAgentFinished{})).size(), 1U);
  Actions actions;
  come(hello(1), &actions);
  EXPECT_EQ(told<Welcome>(actions), 0);
  EXPECT_EQ(all<HostCore::Close>(actions).size(), 1U);
}

TEST_F(HostOfTwo, HearsOfItsOwnNodesGuardiansOnly) {
  EXPECT_FALSE(core_.knows(key_of(1)));
  come(hello(1));
  EXPECT_TRUE(core_.knows(key_of(1)));
  EXPECT_FALSE(core_.knows(key_of(2)));
}

}  // namespace
}  // namespace ddp::rendezvous
