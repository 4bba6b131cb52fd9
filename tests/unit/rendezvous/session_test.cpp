#include "rendezvous/link/session.hpp"

#include <gtest/gtest.h>

#include <csignal>
namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using How = Session::How;

const Session::Target kFirst{"10.0.0.1", 5001}, kSecond{"10.0.0.2", 5002};

std::string text_of(const Session::Target& target) {
  if (!target.address.empty()) return target.address;
  return "endpoint" + (target.port == 0 ? "" : " " + std::to_string(target.port));
}

// One agent on a clock that is set by hand; what it decides is a line of words.
class SessionTest : public ::testing::Test {
 protected:
  std::string step(const Session::Event& event) { return text(session.step(event, now)); }

  std::string after(milliseconds time) {
    now += time;
    return text(session.tick(now));
  }

  std::string hear(const ToAgent& message) { return step(Session::Heard{message}); }
  std::string say(const ToMembership& message) { return step(Session::Said{message}); }
  std::string ended(How how) { return step(Session::Ended{how, 1}); }
  static Session::Ended turned_away(bool can_be_forged) {
    return {How::closed, 1, false, Session::Refusal{{"another token", ""}, can_be_forged}};
  }

  // Lets time pass until something is done, but no longer than `limit`.
  std::string next(milliseconds limit = 1h) {
    for (const auto end = now + limit;;) {
      const auto deadline = session.next_deadline();
      if (!deadline || *deadline > end) return "nothing";
      now = std::max(now, *deadline);
      auto what = text(session.tick(now));
      if (!what.empty() && what != "say time_asked") return what;
    }
  }

  static StartRound start(std::uint32_t number, int group_rank, bool is_embedded = true, int nodes = 3) {
    StartRound message;
    message.round = {100, 7, number};
    message.group_rank = group_rank;
    message.group_world_size = nodes;
    message.nonce = "nonce-" + std::to_string(number);
    if (is_embedded) {
      message.successors = {{1, "10.0.0.2", 5002}, {2, "10.0.0.3", 5003}};
      message.host_group_rank = 0;
    }
    return message;
  }

  void join() {
    EXPECT_EQ(step(Session::Begin{}), "connect endpoint");
    EXPECT_EQ(step(Session::Connected{kFirst}), "say hello");
    EXPECT_EQ(hear(Welcome{}), "hand welcome");
  }

  void join_and_start(int group_rank, bool is_embedded = true) {
    join();
    EXPECT_EQ(hear(start(0, group_rank, is_embedded)), "hand start_round 0");
    EXPECT_EQ(say(RoundStarted{0}), "say round_started");
    now += 10s;
  }

  // As the next host, who knows the key of the present one.
  void join_as_successor_of(const std::string& host_key) {
    join();
    auto message = start(0, 1);
    message.host_node_key = host_key;
    hear(message);
    now += 10s;
  }

  std::string what_it_calls() const {
    const auto hello = session.hello_of_call();
    return (hello.is_host ? "" : " as no host") +
           (hello.held ? " holding " + std::to_string(hello.held->round.number) : std::string()) +
           (hello.goes_on ? " which goes on" : "");
  }

  std::string text(const Session::Actions& actions) {
    std::string out;
    for (const auto& action : actions) {
      if (!out.empty()) out += ", ";
      if (const auto* connect = std::get_if<Session::Connect>(&action)) out += "connect " + text_of(connect->to);
      if (const auto* hang_up = std::get_if<Session::HangUp>(&action))
        out += hang_up->is_end_told ? "hang up openly" : "hang up";
      if (const auto* say = std::get_if<Session::Send>(&action)) {
        constexpr const char* kNames[] = {"hello",       "store_opened", "round_started", "first_step", "round_failed",
                                          "round_ended", "stop_asked",   "stop_ready",    "leaving",    "time_asked"};
        out += std::string("say ") + kNames[say->message.index()];
        if (const auto* hello = std::get_if<Hello>(&say->message)) {
          if (hello->held)
            out += std::string(hello->held->is_established ? " holding established " : " holding ") +
                   std::to_string(hello->held->round.number);
          else if (hello->was_welcomed)
            out += " again";
        }
      }
      if (const auto* hand = std::get_if<Session::HandOn>(&action)) {
        constexpr const char* kNames[] = {"welcome",     "elsewhere",         "refused",      "open_store",
                                          "start_round", "round_established", "prepare_stop", "stop_at",
                                          "stop_round",  "finish_job",        "host_leaves",  "time_told"};
        out += std::string("hand ") + kNames[hand->message.index()];
        if (const auto* round = std::get_if<StartRound>(&hand->message))
          out += " " + std::to_string(round->round.number);
      }
      if (const auto* serve = std::get_if<Session::Serve>(&action))
        out += "serve without " + (serve->lost.group_rank ? std::to_string(*serve->lost.group_rank) : "?");
      if (const auto* call = std::get_if<Session::Call>(&action)) out += "call " + text_of(call->to) + what_it_calls();
      if (std::holds_alternative<Session::StopOrphans>(action)) out += "stop workers";
      if (const auto* give_up = std::get_if<Session::GiveUp>(&action)) {
        const auto* refused = std::get_if<Refused>(&give_up->why);
        const bool do_all_refuse = std::holds_alternative<Session::AllPortsRefuse>(give_up->why);
        out += refused != nullptr ? "give up: " + refused->what
               : do_all_refuse    ? "give up: all ports refuse"
                                  : "give up";
      }
    }
    return out;
  }

  TimePoint now{};
  Session session{{60s, 3s, 30s}, Hello{}, now};
};

TEST_F(SessionTest, GivesUpAtAnEndpointThatWantsAVersionWhichItDoesNotSpeak_AndSaysWhomToUpgrade) {
  for (const bool is_newer : {true, false}) {
    Session of_this{{60s, 3s, 30s}, Hello{}, now};
    static_cast<void>(of_this.step(Session::Begin{}, now));
    static_cast<void>(of_this.step(Session::Connected{kFirst}, now));
    Welcome welcome;
    welcome.version = is_newer ? kVersions.high + 1 : kVersions.low - 1;
    welcome.versions = {welcome.version, welcome.version + 2};
    const auto actions = of_this.step(Session::Heard{welcome}, now);
    ASSERT_EQ(actions.size(), 1U);
    const auto* given_up = std::get_if<Session::GiveUp>(&actions.front());
    ASSERT_NE(given_up, nullptr);
    const auto& refused = std::get<Refused>(given_up->why);
    const auto range = "versions " + std::to_string(welcome.version) + " to " + std::to_string(welcome.version + 2);
    EXPECT_NE(refused.what.find(range), std::string::npos) << refused.what;
    EXPECT_EQ(refused.try_this,
              is_newer ? "upgrade ddprun on this host" : "upgrade what serves the endpoint, ddprun or ddp-rendezvous");
  }
}

TEST_F(SessionTest, BlamesAnEndpointThatChoosesAVersionWhichTheNodeDoesNotSpeakThoughTheyHaveOneInCommon) {
  (void)step(Session::Begin{});
  (void)step(Session::Connected{kFirst});
  Welcome welcome;
  welcome.version = kVersions.high + 1;
  welcome.versions = {kVersions.high, kVersions.high + 1};
  const auto actions = session.step(Session::Heard{welcome}, now);
  ASSERT_EQ(actions.size(), 1U);
  EXPECT_EQ(std::get<Refused>(std::get<Session::GiveUp>(actions.front()).why).try_this,
            "upgrade what serves the endpoint, ddprun or ddp-rendezvous");
}

TEST_F(SessionTest, TheEndpointIsTriedUntilTheJoinTimeout_WithGrowingPauses) {
  EXPECT_EQ(step(Session::Begin{}), "connect endpoint");
  milliseconds last = 0ms;
  int attempts = 0;
  while (now < TimePoint{} + 57s) {
    EXPECT_EQ(ended(attempts % 2 == 0 ? How::refused : How::silent), "");
    const auto before = now;
    EXPECT_EQ(next(), "connect endpoint");
    const auto pause = std::chrono::duration_cast<milliseconds>(now - before);
    EXPECT_GE(pause, last);
    EXPECT_LE(pause, 1s);
    last = pause;
    ++attempts;
  }
  EXPECT_EQ(ended(How::refused), "");
  EXPECT_EQ(next(), "connect endpoint");
  EXPECT_EQ(after(4s), "give up");
  EXPECT_EQ(session.next_deadline(), std::nullopt);
}

TEST_F(SessionTest, JitterShortensAPauseByHalfAtMost) {
  (void)step(Session::Begin{});
  (void)step(Session::Ended{How::refused, 0});
  EXPECT_EQ(*session.next_deadline() - now, 25ms);
}

TEST_F(SessionTest, ARefusalIsFinal) {
  (void)step(Session::Begin{});
  (void)step(Session::Connected{kFirst});
  EXPECT_EQ(hear(Refused{"another job", "", true}), "hang up openly, give up: another job");
  EXPECT_EQ(ended(How::closed), "");
}

TEST_F(SessionTest, ARefusalInTheHandshakeIsFinalWhereNobodyCanForgeIt) {
  EXPECT_EQ(step(Session::Begin{}), "connect endpoint");
  EXPECT_EQ(step(turned_away(false)), "give up: another token");
  EXPECT_EQ(session.next_deadline(), std::nullopt);
}

TEST_F(SessionTest, ARefusalThatAnybodyCouldSendIsFinalAfterTenSecondsWithoutAnythingElse) {
  const auto refused = turned_away(true);
  EXPECT_EQ(step(Session::Begin{}), "connect endpoint");
  for (const auto began = now; now < began + 9s;) {
    EXPECT_EQ(step(refused), "");
    EXPECT_EQ(next(), "connect endpoint");
  }
  EXPECT_EQ(ended(How::refused), "") << "something else";
  EXPECT_EQ(next(), "connect endpoint");
  const auto began = now;
  std::string what;
  while ((what = step(refused)).empty()) EXPECT_EQ(next(), "connect endpoint");
  EXPECT_EQ(what, "give up: another token");
  EXPECT_GE(now - began, 10s);
  EXPECT_LE(now - began, 11s);
  EXPECT_EQ(session.next_deadline(), std::nullopt);
}

TEST_F(SessionTest, ARefusalThatAnybodyCouldSendIsFinalAfterAQuarterOfAShortJoinTimeout) {
  session = Session({4s, 3s, 30s}, Hello{}, now);
  EXPECT_EQ(session.refusal_limit(), 1s);
}

TEST_F(SessionTest, ARefusalThatAnybodyCouldSendEndsNoRound) {
  join_and_start(1, false);
  EXPECT_EQ(ended(How::closed), "connect endpoint");
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(step(turned_away(true)), "");
    EXPECT_EQ(next(), "connect endpoint");
  }
}

// The endpoint is at one of three ports.
class SessionPorts : public SessionTest {
 protected:
  SessionPorts() { session = Session({60s, 3s, 30s, 3}, Hello{}, now); }

  // What becomes of an attempt at which another job's membership answers.
  std::string meet_other_job() {
    EXPECT_EQ(step(Session::Connected{kFirst}), "say hello");
    return hear(Refused{"another job", "", true});
  }
};

TEST_F(SessionPorts, AreTriedInTurnWithoutAPause_ThenAgainAfterOne) {
  EXPECT_EQ(step(Session::Begin{}), "connect endpoint");
  for (int pass = 0; pass < 3; ++pass) {
    EXPECT_EQ(ended(How::refused), "connect endpoint 1");
    EXPECT_EQ(ended(How::closed), "connect endpoint 2");
    EXPECT_EQ(ended(How::refused), "");
    const auto before = now;
    EXPECT_EQ(next(), "connect endpoint");
    EXPECT_GT(now, before);
  }
  EXPECT_EQ(after(61s), "give up");
}

TEST_F(SessionPorts, NoneOfThemTakesLong_UntilItIsKnownWhichOneItIs) {
  const auto limit_of = [](const Session::Actions& actions) {
    return std::get<Session::Connect>(actions.back()).limit;
  };
  EXPECT_EQ(limit_of(session.step(Session::Begin{}, now)), 1s);
  EXPECT_EQ(limit_of(session.step(Session::Ended{How::silent, 1}, now)), 1s);
  EXPECT_EQ(step(Session::Connected{kFirst}), "say hello");
  EXPECT_EQ(hear(Welcome{}), "hand welcome");
  now += 10s;
  EXPECT_EQ(limit_of(session.step(Session::Ended{How::closed, 1}, now)), 5s);
}

TEST_F(SessionPorts, AnotherJobAtOneOfThemIsPassedBy) {
  EXPECT_EQ(step(Session::Begin{}), "connect endpoint");
  EXPECT_EQ(meet_other_job(), "hang up openly, connect endpoint 1");
  EXPECT_EQ(step(Session::Connected{kFirst}), "say hello");
  EXPECT_EQ(hear(Welcome{}), "hand welcome");
  EXPECT_EQ(hear(start(0, 1)), "hand start_round 0");
}

TEST_F(SessionPorts, GivesUpWhenOneHasRefusedAndTheOthersHaveAnsweredForLongEnough) {
  for (const bool can_be_forged : {false, true}) {
    session = Session({60s, 3s, 30s, 3}, Hello{}, now);
    const auto began = now;
    const auto answer_of = [&](const std::string& attempt) {
      if (attempt == "connect endpoint 1") return step(turned_away(can_be_forged));
      const bool may_come = attempt == "connect endpoint 2" && now < began + 20s;
      return ended(may_come ? How::silent : How::refused);
    };
    auto what = step(Session::Begin{});
    while (what.empty() || what.rfind("connect ", 0) == 0) what = what.empty() ? next() : answer_of(what);
    EXPECT_EQ(what, "give up: all ports refuse");
    EXPECT_GE(now - began, 35s) << "a quarter of the join timeout after the last silence";
    EXPECT_LE(now - began, 40s);
  }
}

TEST_F(SessionPorts, GiveUpForNoRefusalBeforeAllHaveBeenTried_NorOnceTheHostIsUnknown) {
  EXPECT_EQ(step(Session::Begin{}), "connect endpoint");
  EXPECT_EQ(step(turned_away(false)), "connect endpoint 1");
  now += 20s;
  EXPECT_EQ(step(turned_away(false)), "connect endpoint 2");
  EXPECT_EQ(step(turned_away(false)), "");
  now += 20s;
  EXPECT_EQ(step(Session::Ended{How::silent, 1, true}), "") << "no attempt is under way";
  EXPECT_EQ(next(), "connect endpoint");
  EXPECT_EQ(step(Session::Ended{How::silent, 1, true}), "");
  EXPECT_EQ(next(), "connect endpoint");
  EXPECT_EQ(step(turned_away(false)), "connect endpoint 1") << "what the others answered is of another host";
}

TEST_F(SessionPorts, TakeNoPartInRefusalsOnceTheJobWasFoundAtOne) {
  EXPECT_EQ(step(Session::Begin{}), "connect endpoint");
  EXPECT_EQ(ended(How::refused), "connect endpoint 1");
  EXPECT_EQ(step(turned_away(true)), "connect endpoint 2");
  EXPECT_EQ(ended(How::refused), "");
  EXPECT_EQ(next(), "connect endpoint");
  EXPECT_EQ(step(Session::Connected{kFirst}), "say hello");
  EXPECT_EQ(hear(Welcome{}), "hand welcome");
  now += 20s;
  EXPECT_EQ(step(turned_away(true)), "connect endpoint") << "anybody could have said that";
}

TEST_F(SessionPorts, ARefusalByTheJobItselfIsFinal) {
  (void)step(Session::Begin{});
  (void)ended(How::refused);
  (void)step(Session::Connected{kFirst});
  EXPECT_EQ(hear(Refused{"that rank is taken", ""}), "give up: that rank is taken");
}

TEST_F(SessionPorts, OneThatIsSilentIsLeftOutForAWhile) {
  EXPECT_EQ(step(Session::Begin{}), "connect endpoint");
  EXPECT_EQ(ended(How::silent), "connect endpoint 1");
  EXPECT_EQ(ended(How::refused), "connect endpoint 2");
  EXPECT_EQ(ended(How::refused), "");
  EXPECT_EQ(next(), "connect endpoint 1");
  EXPECT_EQ(ended(How::refused), "connect endpoint 2");
  now += 3s;
  EXPECT_EQ(ended(How::refused), "");
  EXPECT_EQ(next(), "connect endpoint");
}

TEST_F(SessionPorts, AHostThatIsNotKnownIsLookedForAfterAPause_NotAtItsOtherPorts) {
  EXPECT_EQ(step(Session::Begin{}), "connect endpoint");
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_EQ(step(Session::Ended{How::silent, 1, true}), "");
    EXPECT_EQ(next(2s), "connect endpoint");
  }
}

TEST_F(SessionPorts, TheOneOfTheJobIsTheEndpointFromThenOn) {
  (void)step(Session::Begin{});
  EXPECT_EQ(ended(How::refused), "connect endpoint 1");
  (void)step(Session::Connected{kFirst});
  EXPECT_EQ(hear(Welcome{}), "hand welcome");
  EXPECT_EQ(hear(start(0, 2)), "hand start_round 0");
  now += 10s;
  EXPECT_EQ(ended(How::closed), "connect endpoint 1");
  EXPECT_EQ(ended(How::refused), "connect 10.0.0.2") << "it is lost: the successors stand in";
  EXPECT_EQ(ended(How::refused), "");
  EXPECT_EQ(next(), "connect endpoint 1");
}

TEST_F(SessionPorts, AnotherJobInThePlaceOfTheLostHostIsNoReasonToGiveUp) {
  (void)step(Session::Begin{});
  (void)step(Session::Connected{kFirst});
  (void)hear(Welcome{});
  (void)hear(start(0, 2));
  now += 10s;
  EXPECT_EQ(ended(How::closed), "connect endpoint");
  EXPECT_EQ(step(Session::Connected{kFirst}), "say hello holding 0");
  EXPECT_EQ(hear(Refused{"another job", "", true}), "hang up openly, connect 10.0.0.2");
}

TEST_F(SessionTest, NobodyIsSaidAnythingBeforeTheWelcome) {
  (void)step(Session::Begin{});
  (void)step(Session::Connected{kFirst});
  EXPECT_EQ(say(StopAsked{15}), "");
  EXPECT_EQ(hear(Welcome{}), "hand welcome, say stop_asked");
}

TEST_F(SessionTest, ABrokenConnectionIsResumedAtOnce_AndWhatWasSaidOfTheRoundIsSaidAgain) {
  join_and_start(1);
  EXPECT_EQ(ended(How::closed), "connect endpoint");
  EXPECT_EQ(say(RoundFailed{0, "it failed"}), "");
  EXPECT_EQ(step(Session::Connected{kFirst}), "say hello holding 0");
  EXPECT_EQ(say(RoundEnded{0, {}, 1, false}), "");
  EXPECT_EQ(hear(Welcome{}), "hand welcome, say round_started, say round_failed, say round_ended");
  EXPECT_EQ(hear(start(1, 1)), "hand start_round 1");
  now += 10s;
  EXPECT_EQ(ended(How::closed), "connect endpoint");
  EXPECT_EQ(step(Session::Connected{kFirst}), "say hello holding 1");
  EXPECT_EQ(hear(Welcome{}), "hand welcome") << "of round 0 nothing is said in round 1";
}

TEST_F(SessionTest, TheStartOfTheJobIsReturned) {
  join();
  auto message = start(0, 1, false);
  message.job_started = 900;
  hear(message);
  step(Session::Ended{How::closed, 1});
  now += 10s;
  static_cast<void>(session.tick(now));
  const auto actions = session.step(Session::Connected{kFirst}, now);
  EXPECT_EQ(std::get<Hello>(std::get<Session::Send>(actions.at(0)).message).held->job_started, 900u);
}

TEST_F(SessionTest, TheNoncesOfTheLastEightRoundsAreReturned) {
  join();
  for (std::uint32_t number = 0; number < 10; ++number) {
    hear(start(number, 1, false));
    hear(start(number, 1, false));  // again, on another connection
  }
  step(Session::Ended{How::closed, 1});
  now += 10s;
  static_cast<void>(session.tick(now));
  const auto actions = session.step(Session::Connected{kFirst}, now);
  const auto& hello = std::get<Hello>(std::get<Session::Send>(actions.at(0)).message);
  ASSERT_EQ(hello.held->nonces.size(), kNoncesMax);
  EXPECT_EQ(hello.held->nonces.front(), "nonce-9");
  EXPECT_EQ(hello.held->nonces.back(), "nonce-2");
}

TEST_F(SessionTest, TheStepThatTheRoundWasToldIsReturned) {
  join();
  const auto step_said_again = [&] {
    (void)ended(How::closed);
    now += 10s;
    static_cast<void>(session.tick(now));
    const auto actions = session.step(Session::Connected{kFirst}, now);
    const auto& hello = std::get<Hello>(std::get<Session::Send>(actions.at(0)).message);
    (void)hear(Welcome{});
    return hello.held->stop_call;
  };
  (void)hear(start(0, 1, false));
  EXPECT_EQ(step_said_again(), std::nullopt);
  (void)hear(StopAt{7, 8, 15});
  EXPECT_EQ(step_said_again(), std::nullopt) << "that is another round";
  (void)hear(StopAt{0, 9, 15});
  EXPECT_EQ(step_said_again(), 9u);
  (void)hear(start(1, 1, false));
  EXPECT_EQ(step_said_again(), std::nullopt);
}

TEST_F(SessionTest, AConnectionThatBreaksAgainAndAgainIsTriedWithPauses) {
  join_and_start(1);
  EXPECT_EQ(ended(How::closed), "connect endpoint");
  (void)step(Session::Connected{kFirst});
  (void)hear(Welcome{});
  EXPECT_EQ(ended(How::closed), "");
  EXPECT_EQ(next(), "connect endpoint");
}

TEST_F(SessionTest, ARoundThatHasBegunIsNotBegunAgain_AndNoneOfATimeBefore) {
  join_and_start(1);
  EXPECT_EQ(hear(start(0, 1)), "");
  EXPECT_EQ(hear(start(3, 1)), "hand start_round 3");
  EXPECT_EQ(hear(start(2, 1)), "");
  auto older_term = start(7, 1);
  older_term.round.term = 99;
  EXPECT_EQ(hear(older_term), "");
}

TEST_F(SessionTest, AStoreThatIsOpenIsNotOpenedAgain_ItsPortIsSaidAgain) {
  join();
  EXPECT_EQ(hear(OpenStore{{100, 7, 0}, {}, true}), "hand open_store");
  EXPECT_EQ(say(StoreOpened{0, 5000}), "say store_opened");
  now += 10s;
  (void)ended(How::closed);
  (void)step(Session::Connected{kFirst});
  EXPECT_EQ(hear(Welcome{}), "hand welcome") << "it is asked again, if that is still its store";
  EXPECT_EQ(hear(OpenStore{{100, 7, 0}, {}, false}), "");
  EXPECT_EQ(hear(OpenStore{{100, 7, 0}, {}, true}), "say store_opened");
  EXPECT_EQ(hear(OpenStore{{100, 7, 1}, {}, true}), "hand open_store");
}

TEST_F(SessionTest, DaemonThatIsFullLeavesTheNodeItsRound) {
  const Refused full{"too many jobs", "", true, true};
  join_and_start(1, false);
  now += 10s;
  (void)ended(How::closed);
  const auto began = now;
  // Longer than the orphan limit, and then than the heartbeat limit.
  for (int i = 0; i < 200; ++i) {
    if (i == 100) (void)say(RoundEnded{});
    ASSERT_EQ(step(Session::Connected{kFirst}), "say hello holding 0");
    EXPECT_EQ(hear(full), "hang up openly");
    EXPECT_EQ(next(), "connect endpoint");
  }
  EXPECT_GT(now - began, 60s);
}

TEST_F(SessionTest, RoundOfTheSameNumberInAnotherTermGetsAStoreOfItsOwn) {
  join();
  EXPECT_EQ(hear(OpenStore{{100, 7, 0}, {}, true}), "hand open_store");
  EXPECT_EQ(say(StoreOpened{0, 5000}), "say store_opened");
  EXPECT_EQ(hear(start(0, 1)), "hand start_round 0");
  EXPECT_EQ(hear(OpenStore{{200, 8, 0}, {}, false}), "hand open_store");
  EXPECT_EQ(hear(OpenStore{{200, 8, 0}, {}, true}), "hand open_store");
}

TEST_F(SessionTest, WhatTheRoundHasComeToIsSaidInTheHello) {
  join();
  now += 10s;
  (void)ended(How::closed);
  EXPECT_EQ(step(Session::Connected{kFirst}), "say hello again");
  (void)hear(Welcome{});
  (void)hear(start(0, 1));
  EXPECT_EQ(hear(RoundEstablished{0}), "hand round_established");
  now += 10s;
  (void)ended(How::closed);
  EXPECT_EQ(step(Session::Connected{kFirst}), "say hello holding established 0");
}

TEST_F(SessionTest, WhereNobodyKnowsItsRoundItsWorkersHaveALimitedTimeAndThenItJoinsWithoutThat) {
  const Refused unknown{"nobody knows that round", "", false, true};
  join_and_start(1, false);
  auto what = ended(How::closed);
  for (int attempts = 0; what == "connect endpoint" && attempts < 1000; ++attempts) {
    EXPECT_EQ(step(Session::Connected{kFirst}), "say hello holding 0");
    EXPECT_EQ(hear(unknown), "hang up");
    what = next();
  }
  EXPECT_EQ(what, "stop workers");
  EXPECT_EQ(now, TimePoint{} + 10s + 30s);
  EXPECT_EQ(say(RoundEnded{0, {}, 1, false}), "");
  EXPECT_EQ(next(), "connect endpoint");
  EXPECT_EQ(step(Session::Connected{kFirst}), "say hello holding 0");
  EXPECT_EQ(hear(unknown), "hang up");
  EXPECT_EQ(next(), "connect endpoint");
  EXPECT_EQ(step(Session::Connected{kFirst}), "say hello holding 0") << "as one that was left behind";
  EXPECT_EQ(hear(Welcome{}), "hand welcome") << "the next round there may have the number of the one that has ended";
}

TEST_F(SessionTest, WhoIsLeftBehindServesNobody_AndAnswersForItsRoundOnlyIfAsked) {
  join_and_start(1);
  StopRound stop;
  stop.is_left_behind = true;
  EXPECT_EQ(hear(stop), "hand stop_round");
  (void)ended(How::closed);
  EXPECT_EQ(step(Session::Connected{kFirst}), "say hello holding 0") << "its workers have to be waited for";
  (void)hear(Welcome{});
  EXPECT_EQ(say(RoundEnded{}), "say round_ended");
  now += 10s;
  (void)ended(How::closed);
  EXPECT_EQ(step(Session::Connected{kFirst}), "say hello holding 0") << "it knows of the job's restarts";
  EXPECT_EQ(hear(Welcome{}), "hand welcome") << "another round there may have the number of the one that has ended";
  EXPECT_EQ(hear(stop), "say round_ended, hand stop_round");
  EXPECT_EQ(hear(stop), "hand stop_round") << "the second end would be taken for that of another round of its number";
  now += 10s;
  (void)ended(How::closed);
  EXPECT_EQ(step(Session::Connected{kFirst}), "say hello holding 0");
  EXPECT_EQ(hear(Welcome{}), "hand welcome");
  stop.is_left_behind = false;
  EXPECT_EQ(hear(stop), "say round_ended, hand stop_round") << "whoever asks";
  now += 10s;
  EXPECT_EQ(ended(How::silent), "");
  EXPECT_EQ(next().find("serve"), std::string::npos);
}

TEST_F(SessionTest, WhoHearsThatItIsLeftBehindAfterItHasSaidItsEndSaysItOnce) {
  join_and_start(1);
  now += 10s;
  (void)ended(How::closed);
  (void)say(RoundEnded{});
  EXPECT_EQ(step(Session::Connected{kFirst}), "say hello holding 0");
  EXPECT_EQ(hear(Welcome{}), "hand welcome, say round_started, say round_ended");
  StopRound stop;
  stop.is_left_behind = true;
  EXPECT_EQ(hear(stop), "hand stop_round");
}

TEST_F(SessionTest, WhoWasLeftBehindStatesNoRoundWhereThatIsRefused) {
  join_and_start(1);
  StopRound stop;
  stop.is_left_behind = true;
  (void)hear(stop);
  (void)say(RoundEnded{});
  now += 10s;
  (void)ended(How::closed);
  EXPECT_EQ(step(Session::Connected{kFirst}), "say hello holding 0");
  EXPECT_EQ(hear(Refused{"other --nnodes", "", false, true}), "hang up");
  EXPECT_EQ(next(), "connect endpoint");
  EXPECT_EQ(step(Session::Connected{kFirst}), "say hello again");
  EXPECT_EQ(hear(Refused{"other --nnodes", ""}), "give up: other --nnodes");
}

TEST_F(SessionTest, WhoWasToldToStopWaitsForNobodyLong) {
  join_and_start(1, false);
  EXPECT_EQ(say(StopAsked{15}), "say stop_asked");
  EXPECT_EQ(say(RoundEnded{}), "say round_ended");
  EXPECT_EQ(ended(How::closed), "connect endpoint");
  const auto since = now;
  (void)ended(How::refused);
  while (next() != "give up") (void)ended(How::refused);
  EXPECT_LE(now - since, 3s) << "the heartbeat limit, not the join timeout";
}

TEST_F(SessionTest, AStopIsAskedForAgainAsAnotherCauseMayHaveStoppedTheRound) {
  join_and_start(1);
  EXPECT_EQ(say(StopAsked{15}), "say stop_asked");
  EXPECT_EQ(hear(StopRound{0, 15, false, false, "", {}}), "hand stop_round");
  (void)ended(How::closed);
  (void)step(Session::Connected{kFirst});
  EXPECT_EQ(hear(Welcome{}), "hand welcome, say round_started, say stop_asked");
}

// Both are one message afterwards, and the first may not have been heard either.
TEST_F(SessionTest, ASecondStopIsSaidAsSuchAlsoAfterABrokenConnection) {
  const auto said_last = [](const Session::Actions& actions) {
    return std::get<StopAsked>(std::get<Session::Send>(actions.back()).message);
  };
  join_and_start(1);
  EXPECT_FALSE(said_last(session.step(Session::Said{StopAsked{2}}, now)).is_second);
  now += 200ms;
  EXPECT_FALSE(said_last(session.step(Session::Said{StopAsked{2}}, now)).is_second) << "it comes at once";
  (void)ended(How::closed);
  now += 1ms;
  (void)say(StopAsked{2});
  (void)step(Session::Connected{kFirst});
  EXPECT_TRUE(said_last(session.step(Session::Heard{Welcome{}}, now)).is_second);
}

TEST_F(SessionTest, AJoinedNodeAsksForTheTimeUntilTheEndpointDoesNotAnswer) {
  (void)step(Session::Begin{});
  (void)step(Session::Connected{kFirst});
  now += 100ms;
  (void)hear(Welcome{1'000ms});
  EXPECT_EQ(session.clock().job_time(now), 1'050ms);
  EXPECT_EQ(session.clock().error(now), 52ms);
  EXPECT_EQ(*session.next_deadline() - now, 4'900ms);
  EXPECT_EQ(after(4'900ms), "say time_asked");
  EXPECT_EQ(session.next_deadline(), std::nullopt);
  now += 10ms;
  EXPECT_EQ(hear(TimeTold{7, 1h}), "") << "no question was of that number";
  EXPECT_EQ(hear(TimeTold{1, 6'000ms}), "");
  EXPECT_EQ(session.clock().job_time(now), 6'005ms);
  EXPECT_EQ(session.clock().error(now), 7ms);
  EXPECT_EQ(after(4'990ms), "say time_asked");
  (void)ended(How::closed);
  (void)step(Session::Connected{kFirst});
  (void)hear(Welcome{1h});
  EXPECT_EQ(session.clock().job_time(now), 1h) << "another endpoint has another clock";
}

TEST_F(SessionTest, ANodeThatLeavesDoesNotComeAgain) {
  join_and_start(1);
  EXPECT_EQ(say(Leaving{"its guardian ended"}), "say leaving");
  EXPECT_EQ(ended(How::closed), "");
  EXPECT_EQ(next(), "nothing");
}

TEST_F(SessionTest, RestartsAreStatedWithTheirAgesAtThatTime) {
  join();
  auto message = start(0, 1);
  message.restart_count = 3;
  message.spent_restarts = {{10s, 2}, {0s, 1}};
  (void)hear(message);
  now += 5s;
  (void)ended(How::closed);
  now += 1s;
  const auto actions = session.step(Session::Connected{kFirst}, now);
  const auto& hello = std::get<Hello>(std::get<Session::Send>(actions.back()).message);
  EXPECT_EQ(hello.held->spent_restarts, (std::vector<SpentRestarts>{{16s, 2}, {6s, 1}}));
}

TEST_F(SessionTest, AWarningIsNoStopAndTakesNoStopsPlace) {
  join_and_start(1, false);
  EXPECT_EQ(say(StopAsked{10, true}), "say stop_asked");
  EXPECT_EQ(say(RoundEnded{}), "say round_ended");
  EXPECT_EQ(ended(How::closed), "connect endpoint");
  (void)ended(How::refused);
  const auto since = now;
  for (int i = 0; i < 20; ++i, (void)ended(How::refused)) EXPECT_EQ(next(), "connect endpoint");
  EXPECT_GT(now - since, 3s) << "it is waited for longer than after a stop";
  (void)say(StopAsked{15});
  (void)say(StopAsked{10, true});
  (void)next();
  (void)step(Session::Connected{kFirst});
  const auto actions = session.step(Session::Heard{Welcome{}}, now);
  std::vector<StopAsked> stops;
  for (const auto& action : actions)
    if (const auto* send = std::get_if<Session::Send>(&action))
      if (const auto* stop = std::get_if<StopAsked>(&send->message)) stops.push_back(*stop);
  EXPECT_EQ(stops, std::vector{StopAsked{15}});
}

TEST_F(SessionTest, WhileWorkersRun_AnEndpointThatRefusesIsTriedForEver) {
  join_and_start(1, false);
  EXPECT_EQ(ended(How::closed), "connect endpoint");
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(ended(How::refused), "");
    EXPECT_EQ(next(), "connect endpoint");
  }
  EXPECT_GT(now, TimePoint{} + 10min);
}

TEST_F(SessionTest, WithoutAnyAnswerForTheOrphanLimit_TheWorkersAreStoppedOnce_ThenTheJoinTimeoutCounts) {
  join_and_start(1, false);
  const auto silent_since = now;
  EXPECT_EQ(ended(How::silent), "");
  std::string what;
  while ((what = next()) == "connect endpoint") EXPECT_EQ(ended(How::silent), "");
  EXPECT_EQ(what, "stop workers");
  EXPECT_EQ(now - silent_since, 30s);
  EXPECT_EQ(say(RoundEnded{0, {}, 2, false}), "");
  while ((what = next()) == "connect endpoint") EXPECT_EQ(ended(How::silent), "");
  EXPECT_EQ(what, "give up");
  EXPECT_EQ(now - silent_since, 90s);
}

TEST_F(SessionTest, AnyAnswerEndsTheSilence) {
  join_and_start(1, false);
  (void)ended(How::silent);
  EXPECT_EQ(after(29s), "connect endpoint");
  EXPECT_EQ(ended(How::refused), "");
  EXPECT_EQ(after(29s), "connect endpoint");
  EXPECT_EQ(ended(How::silent), "");
  EXPECT_EQ(after(29s), "connect endpoint");
  EXPECT_EQ(after(1s), "stop workers");
}

TEST_F(SessionTest, WhoTakesTheConnectionAndClosesItIsNoAnswer) {
  join_and_start(1, false);
  const auto began = now;
  EXPECT_EQ(ended(How::closed), "connect endpoint");
  std::string what;
  do EXPECT_EQ(ended(How::closed), "");
  while ((what = next()) == "connect endpoint");
  EXPECT_EQ(what, "stop workers");
  EXPECT_EQ(now - began, 30s);
}

TEST_F(SessionTest, TheFirstSuccessorServesAtOnceWhereTheHostIsSilent) {
  join_and_start(1);
  EXPECT_EQ(ended(How::silent), "serve without 0");
  EXPECT_EQ(step(Session::Hosting{}), "say hello holding 0");
  EXPECT_EQ(hear(Welcome{}), "hand welcome, say round_started");
  EXPECT_EQ(session.whereabouts(), std::nullopt);
}

TEST_F(SessionTest, TheFirstSuccessorServesWhereTheHostRefusesOnceMore_NotWhereOnlyTheConnectionBroke) {
  join_and_start(1);
  EXPECT_EQ(ended(How::closed), "connect endpoint");
  EXPECT_EQ(ended(How::closed), "") << "somebody took the connection";
  EXPECT_EQ(next(), "connect endpoint");
  EXPECT_EQ(ended(How::refused), "serve without 0");
}

TEST_F(SessionTest, TheOthersLookForTheSuccessorThatServes) {
  join_and_start(2);
  EXPECT_EQ(ended(How::silent), "connect 10.0.0.2");
  EXPECT_EQ(step(Session::Connected{kSecond}), "say hello holding 0");
  EXPECT_EQ(ended(How::closed), "") << "it does not know yet";
  EXPECT_EQ(next(100ms), "connect 10.0.0.2") << "not the host that is silent";
  (void)step(Session::Connected{kSecond});
  EXPECT_EQ(hear(Welcome{}), "hand welcome, say round_started");
  EXPECT_EQ(session.whereabouts(), kSecond);
}

TEST_F(SessionTest, ASuccessorThatPointsToTheLostHostIsAskedAgainSoon) {
  join_and_start(2);
  EXPECT_EQ(ended(How::silent), "connect 10.0.0.2");
  for (int i = 0; i < 10; ++i) {
    (void)step(Session::Connected{kSecond});
    EXPECT_EQ(hear(Elsewhere{"10.0.0.1", 5001}), "hang up openly") << "as that address is known for the host's";
    EXPECT_EQ(next(100ms), "connect 10.0.0.2");
  }
}

TEST_F(SessionTest, WhoWasSilentIsNotTriedAgainBeforeThoseThatAnswer) {
  join_and_start(0);  // as a node that is none of the successors
  EXPECT_EQ(ended(How::silent), "connect 10.0.0.2");
  EXPECT_EQ(ended(How::silent), "");
  EXPECT_EQ(next(100ms), "connect 10.0.0.3");
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(ended(How::refused), "");
    EXPECT_EQ(next(100ms), "connect 10.0.0.3");
  }
}

TEST_F(SessionTest, ElsewhereIsFollowed_ButNotInCircles) {
  EXPECT_EQ(step(Session::Begin{}), "connect endpoint");
  int followed = 0;
  for (;; ++followed) {
    (void)step(Session::Connected{kFirst});
    if (hear(Elsewhere{followed % 2 == 0 ? "10.0.0.2" : "10.0.0.3", 5000}) == "hang up openly") break;
    ASSERT_LT(followed, 100);
  }
  EXPECT_LT(followed, 10);
  EXPECT_EQ(next(), "connect 10.0.0.2") << "after a pause, all in turn";
  (void)ended(How::refused);
  EXPECT_EQ(next(), "connect 10.0.0.3");
  (void)ended(How::refused);
  EXPECT_EQ(next(), "connect endpoint");
}

TEST_F(SessionTest, TheSecondSuccessorServesWhereTheFirstIsOutOfReachForAnotherHeartbeatLimit) {
  join_and_start(2);
  const auto lost = now;
  auto what = ended(How::silent);
  while (what.rfind("connect", 0) == 0) {
    (void)ended(How::refused);
    what = next();
  }
  EXPECT_EQ(what, "serve without 0");
  EXPECT_EQ(now - lost, 3s);
}

TEST_F(SessionTest, TheSecondSuccessorDoesNotServeWhileTheFirstAnswers) {
  join_and_start(2);
  auto what = ended(How::silent);
  for (const auto begin = now; now < begin + 20s;) {
    if (what == "connect 10.0.0.2") {
      (void)step(Session::Connected{kFirst});
      (void)hear(Elsewhere{"10.0.0.1", 5001});
    }
    (void)ended(How::silent);
    what = next();
    ASSERT_EQ(what.find("serve"), std::string::npos);
  }
}

TEST_F(SessionTest, WhereTheNextHostIsLostToo_TheOneAfterItServesWithoutIt) {
  join_and_start(2);
  (void)ended(How::silent);
  (void)step(Session::Connected{kSecond});
  (void)hear(Welcome{});
  now += 10s;
  EXPECT_EQ(ended(How::silent), "serve without 1");
}

TEST_F(SessionTest, AHostThatMayNotGoOnStopsItsWorkersAndLooksForTheOthers) {
  EXPECT_EQ(step(Session::Hosting{}), "say hello");
  (void)hear(Welcome{});
  (void)hear(start(0, 0));
  EXPECT_EQ(step(Session::SteppedDown{"the others are out of reach"}), "stop workers, connect 10.0.0.2");
  EXPECT_EQ(ended(How::silent), "");
  EXPECT_EQ(next(), "connect 10.0.0.3");
  (void)say(RoundEnded{0, {}, 1, false});
  EXPECT_EQ(step(Session::Connected{kFirst}), "say hello holding 0");
  EXPECT_EQ(hear(Welcome{}), "hand welcome, say round_ended");
}

TEST_F(SessionTest, ANextHostThatMayNotGoOnLooksAtTheEndpointToo) {
  join_and_start(1);
  EXPECT_EQ(ended(How::silent), "serve without 0");
  (void)step(Session::Hosting{});
  (void)hear(Welcome{});
  EXPECT_EQ(step(Session::SteppedDown{""}), "stop workers, connect 10.0.0.3");
  EXPECT_EQ(ended(How::silent), "");
  EXPECT_EQ(next(), "connect endpoint") << "newcomers come there";
}

TEST_F(SessionTest, ANextHostThatMayNotGoOnServesNotAgain) {
  join_and_start(1);
  EXPECT_EQ(ended(How::silent), "serve without 0");
  (void)step(Session::Hosting{});
  (void)hear(Welcome{});
  EXPECT_EQ(step(Session::SteppedDown{""}), "stop workers, connect 10.0.0.3");
  (void)say(RoundEnded{0, {}, 1, false});
  std::string what;
  do {
    EXPECT_EQ(ended(How::silent), "");
    what = next();
  } while (what.rfind("connect", 0) == 0);
  EXPECT_EQ(what, "give up");
}

TEST_F(SessionTest, LastOneOfARoundLooksForTheEndpointSoonAgain) {
  join();
  auto message = start(0, 1, true, 2);
  message.successors.pop_back();
  (void)hear(message);
  now += 10s;
  EXPECT_EQ(ended(How::silent), "serve without 0");
  (void)step(Session::Hosting{});
  (void)hear(Welcome{});
  EXPECT_EQ(step(Session::SteppedDown{"too few"}), "stop workers, connect endpoint");
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(ended(How::refused), "");
    EXPECT_EQ(next(100ms), "connect endpoint") << "a new ddprun may have come there";
  }
}

TEST_F(SessionTest, LostDaemonIsNotLookedForAsOften) {
  join_and_start(1, false);
  for (int i = 0; i < 20; ++i) {
    (void)ended(How::refused);
    (void)next();
  }
  EXPECT_EQ(ended(How::refused), "");
  EXPECT_EQ(next(900ms), "nothing") << "it may have many jobs";
}

TEST_F(SessionTest, AfterItSteppedDownAnotherJobAtTheOnlyPortEndsNoSearch) {
  join_and_start(1);
  EXPECT_EQ(ended(How::silent), "serve without 0");
  (void)step(Session::Hosting{});
  (void)hear(Welcome{});
  (void)hear(start(1, 0, false));
  (void)say(RoundEnded{1, {}, 1, false});
  const auto began = now;
  auto what = step(Session::SteppedDown{"the others are out of reach"});
  while (what == "connect endpoint") {
    EXPECT_EQ(step(Session::Connected{kFirst}), "say hello holding 1");
    EXPECT_EQ(hear(Refused{"job b is served here", "", true}), "hang up openly");
    what = next();
  }
  EXPECT_EQ(what, "give up");
  EXPECT_EQ(now - began, 60s) << "for the join timeout, as the own job may come back there";
}

TEST_F(SessionTest, ASpareThatLostTheEndpointTriesForTheJoinTimeout) {
  join();
  now += 10min;
  EXPECT_EQ(next(), "nothing") << "it waits as long as the job lasts";
  const auto lost = now;
  auto what = ended(How::closed);
  while (what == "connect endpoint") {
    EXPECT_EQ(ended(How::refused), "");
    what = next();
  }
  EXPECT_EQ(what, "give up");
  EXPECT_EQ(now - lost, 60s);
}

TEST_F(SessionTest, AfterTheVerdictTheEndOfTheConnectionIsNone) {
  join_and_start(1);
  EXPECT_EQ(hear(FinishJob{}), "hand finish_job");
  EXPECT_EQ(ended(How::closed), "");
  EXPECT_EQ(session.next_deadline(), std::nullopt);
}

// --- the endpoint, and who serves the job elsewhere ---

TEST_F(SessionTest, InPlaceOfAnotherHost_CallsAtTheEndpointOnceASecondUntilItStepsDown) {
  join_and_start(1);
  EXPECT_EQ(ended(How::closed), "connect endpoint");
  EXPECT_EQ(ended(How::refused), "serve without 0");
  EXPECT_EQ(step(Session::Hosting{}), "say hello holding 0");
  EXPECT_EQ(after(0ms), "call endpoint holding 0");
  EXPECT_EQ(hear(Welcome{}), "hand welcome, say round_started");
  EXPECT_EQ(after(999ms), "");
  EXPECT_EQ(after(1ms), "call endpoint holding 0");
  EXPECT_EQ(next(), "call endpoint holding 0") << "it is not decided whether the job goes on here";
  EXPECT_EQ(hear(start(1, 0)), "hand start_round 1");
  EXPECT_EQ(what_it_calls(), " holding 1 which goes on") << "on the connection that was begun before this round";
  EXPECT_EQ(next(), "call endpoint holding 1 which goes on");
  EXPECT_EQ(step(Session::SteppedDown{"too few"}), "stop workers, connect 10.0.0.2");
}

TEST_F(SessionTest, TheHostAtTheEndpoint_CallsNobody) {
  EXPECT_EQ(step(Session::Hosting{}), "say hello");
  EXPECT_EQ(hear(Welcome{}), "hand welcome");
  EXPECT_FALSE(session.next_deadline());
}

TEST_F(SessionTest, TheHostAtTheEndpoint_JoinsWhoServesTheJobAlready) {
  EXPECT_EQ(step(Session::Hosting{}), "say hello");
  EXPECT_EQ(hear(Welcome{}), "hand welcome");
  EXPECT_EQ(step(Session::SteppedDown{"", kSecond}), "connect 10.0.0.2");
  EXPECT_EQ(step(Session::Connected{kSecond}), "say hello again");
  EXPECT_EQ(hear(Welcome{}), "hand welcome");
  EXPECT_EQ(hear(start(4, 2)), "hand start_round 4");
  EXPECT_EQ(next(4s), "nothing") << "it calls nobody, and does not serve again";
}

TEST_F(SessionTest, TheHostAtTheEndpoint_ServesAgainWhereNobodyElseWelcomesIt) {
  EXPECT_EQ(step(Session::Hosting{}), "say hello");
  EXPECT_EQ(hear(Welcome{}), "hand welcome");
  EXPECT_EQ(step(Session::SteppedDown{"", kSecond}), "connect 10.0.0.2");
  EXPECT_EQ(ended(How::silent), "");
  EXPECT_EQ(next(), "connect 10.0.0.2") << "not its own endpoint";
  EXPECT_EQ(next(), "hang up, serve without ?");
  EXPECT_EQ(step(Session::Hosting{}), "say hello again");
  EXPECT_EQ(after(10s), "") << "it is at the endpoint";
}

TEST_F(SessionTest, TheHostAtTheEndpoint_ThatHadNoPartInTheLastRoundDoesNotTakeUpTheOneBefore) {
  for (const std::uint32_t last : {0u, 1u}) {
    session = Session({60s, 3s, 30s}, Hello{}, now);
    (void)step(Session::Hosting{});
    (void)hear(Welcome{});
    (void)hear(start(0, 0));
    (void)say(RoundEnded{0, {}, 1, false});
    EXPECT_EQ(step(Session::SteppedDown{"", kSecond, false, start(last, 0).round}), "connect 10.0.0.2");
    const auto actions = session.step(Session::Connected{kSecond}, now);
    ASSERT_EQ(actions.size(), 1u);
    const auto held = std::get<Hello>(std::get<Session::Send>(actions.front()).message).held.value();
    EXPECT_EQ(held.is_left_behind, last == 1) << "another node's round";
  }
}

TEST_F(SessionTest, TheHostAtTheEndpoint_ServesAgainWhereTheOtherHostIsLostBeforeARound) {
  EXPECT_EQ(step(Session::Hosting{}), "say hello");
  EXPECT_EQ(hear(Welcome{}), "hand welcome");
  EXPECT_EQ(step(Session::SteppedDown{"", kSecond}), "connect 10.0.0.2");
  EXPECT_EQ(step(Session::Connected{kSecond}), "say hello again");
  EXPECT_EQ(hear(Welcome{}), "hand welcome");
  EXPECT_EQ(ended(How::closed), "");
  std::string what;
  while ((what = next(10s)) == "connect 10.0.0.2") EXPECT_EQ(ended(How::refused), "");
  EXPECT_EQ(what, "serve without ?");
}

TEST_F(SessionTest, SaysWhoHadTheEndpointAndWhereItWasReached) {
  join_and_start(1);
  EXPECT_EQ(ended(How::closed), "connect endpoint");
  const auto actions = session.step(Session::Connected{kFirst}, now);
  ASSERT_EQ(actions.size(), 1u);
  const auto held = std::get<Hello>(std::get<Session::Send>(actions.front()).message).held.value();
  EXPECT_EQ(held.host_group_rank, 0);
  EXPECT_EQ(held.endpoint_address, "10.0.0.1");
}

TEST_F(SessionTest, ReachedElsewhere_SaysNothingOfTheEndpoint) {
  join_and_start(2);
  EXPECT_EQ(ended(How::closed), "connect endpoint");
  EXPECT_EQ(ended(How::refused), "connect 10.0.0.2");
  EXPECT_EQ(step(Session::Connected{kSecond}), "say hello holding 0");
  EXPECT_EQ(hear(Welcome{}), "hand welcome, say round_started");
  EXPECT_EQ(ended(How::closed), "");
  EXPECT_EQ(next(), "connect 10.0.0.2");
  const auto actions = session.step(Session::Connected{kSecond}, now);
  ASSERT_EQ(actions.size(), 1u);
  const auto held = std::get<Hello>(std::get<Session::Send>(actions.front()).message).held.value();
  EXPECT_EQ(held.host_group_rank, std::nullopt);
  EXPECT_EQ(held.endpoint_address, "");
}

// --- the host leaves, or its guardian says that it has ended ---

TEST_F(SessionTest, TheNextHostServesAtOnceIfTheHostLeaves) {
  join_and_start(1);
  EXPECT_EQ(hear(HostLeaves{}), "hang up openly, serve without 0");
}

TEST_F(SessionTest, OtherNodesLookForTheNextHostAtOnceIfTheHostLeaves) {
  join_and_start(2);
  EXPECT_EQ(hear(HostLeaves{}), "hang up openly, connect 10.0.0.2");
}

TEST_F(SessionTest, WhatAHostSaysOfItselfIsHandedToTheNextMembership) {
  join_and_start(1);
  const auto actions = session.step(Session::Heard{HostLeaves{}}, now);
  const auto& lost = std::get<Session::Serve>(actions.back()).lost;
  EXPECT_TRUE(lost.is_end_proven && lost.has_left);
}

TEST_F(SessionTest, AHostThatEndsForAnotherReasonIsLost) {
  join_and_start(1);
  const auto actions = session.step(Session::Heard{HostLeaves{"its guardian process ended", {}, 137}}, now);
  const auto& lost = std::get<Session::Serve>(actions.back()).lost;
  EXPECT_TRUE(lost.is_end_proven);
  EXPECT_FALSE(lost.has_left);
  EXPECT_EQ(lost.why, "its guardian process ended");
  EXPECT_EQ(lost.exit_code, 137);
}

TEST_F(SessionTest, ARoundThatNeverStartedKeepsNoEarlierOneAway) {
  join();
  EXPECT_EQ(hear(OpenStore{{200, 8, 0}, {}, true}), "hand open_store");
  EXPECT_EQ(hear(start(3, 1)), "hand start_round 3") << "of a membership that began before the other one";
  EXPECT_EQ(hear(OpenStore{{100, 7, 2}, {}, true}), "") << "it is older than the one that was started";
}

TEST_F(SessionTest, AProofOfAnEndIsForThatRoundAlone) {
  join_and_start(2);
  hear(HostLeaves{{}, {1}});
  EXPECT_EQ(step(Session::Connected{kSecond}), "say hello holding 0");
  hear(Welcome{});
  auto next = start(1, 1, true, 2);
  next.host_group_rank = 0;
  next.successors = {{1, "10.0.0.3", 5003}};
  hear(next);
  now += 10s;
  ended(How::closed);
  const auto actions = session.step(Session::Ended{How::refused, 1}, now);
  const auto& lost = std::get<Session::Serve>(actions.back()).lost;
  EXPECT_FALSE(lost.is_end_proven || lost.has_left || lost.exit_code);
  EXPECT_TRUE(lost.others_gone.empty());
}

TEST_F(SessionTest, WhoSaysAStopAgainSaysItBeforeTheEndOfTheRound) {
  join_and_start(1, false);
  say(StopAsked{15});
  say(RoundEnded{0, {}, 0, false});
  EXPECT_EQ(ended(How::closed), "connect endpoint");
  EXPECT_EQ(step(Session::Connected{kFirst}), "say hello holding 0");
  EXPECT_EQ(hear(Welcome{}), "hand welcome, say round_started, say stop_asked, say round_ended");
}

TEST_F(SessionTest, AGuardiansWordIsForItsHostAlone_AndAppearsInWhatTheNextHostKnows) {
  join_as_successor_of("key-of-host");
  EXPECT_FALSE(session.knows_host("another key"));
  EXPECT_TRUE(session.knows_host("key-of-host"));
  EXPECT_EQ(step(Session::GuardianSaid{"another key"}), "");
  EXPECT_EQ(step(Session::GuardianSaid{"key-of-host", SIGKILL}), "") << "the connection ends by itself";
  EXPECT_EQ(ended(How::closed), "connect endpoint");
  const auto actions = session.step(Session::Ended{How::refused, 1}, now);
  const auto& lost = std::get<Session::Serve>(actions.back()).lost;
  EXPECT_EQ(lost.group_rank, 0);
  EXPECT_EQ(lost.node_key, "key-of-host");
  EXPECT_TRUE(lost.is_end_proven);
  EXPECT_FALSE(lost.has_left);
  EXPECT_EQ(lost.why, "its ddprun was killed by SIGKILL");
  EXPECT_EQ(lost.exit_code, 137);
}

TEST_F(SessionTest, AHostThatSteppedDownForWantOfAGuardiansWordServesAgainWithIt) {
  join_as_successor_of("key-of-host");
  ended(How::closed);
  EXPECT_EQ(ended(How::refused), "serve without 0");
  step(Session::Hosting{});
  step(Session::SteppedDown{"too few"});
  EXPECT_NE(step(Session::GuardianSaid{"key-of-host"}).find("serve without 0"), std::string::npos);
  EXPECT_EQ(step(Session::GuardianSaid{"key-of-host"}), "") << "once";
}

TEST_F(SessionTest, AHostsGuardianTellsThoseThatWouldServeNext) {
  join_and_start(2);
  ASSERT_EQ(session.farewell_targets().size(), 1U) << "who serves";
  EXPECT_EQ(session.farewell_targets().front(), kFirst);
  Session host{{60s, 3s, 30s}, Hello{}, now};
  static_cast<void>(host.step(Session::Hosting{}, now));
  EXPECT_TRUE(host.farewell_targets().empty());
  static_cast<void>(host.step(Session::Heard{Welcome{}}, now));
  static_cast<void>(host.step(Session::Heard{start(0, 0)}, now));
  EXPECT_EQ(host.farewell_targets(), (std::vector<Session::Target>{{"10.0.0.2", 5002}, {"10.0.0.3", 5003}}));
}

}  // namespace
}  // namespace ddp::rendezvous
