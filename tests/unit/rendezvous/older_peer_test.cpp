// The control channel's messages as they were before every field was checked and rounds had nonces. They were recorded
// with the membership and the texts of that time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rendezvous/host/host_core.hpp"
#include "rendezvous/link/session.hpp"
#include "rendezvous/wire/message_json.hpp"
#include "tests/unit/actions_of.hpp"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr int kWorkersOfEach = 2;

struct Recorded {
  std::uint64_t connection = 0;
  bool is_to_agent = false;
  std::string text;
};

class OlderPeer : public ::testing::Test {
 protected:
  OlderPeer() {
    std::ifstream file(DDP_TEST_SOURCE_DIR "/tests/data/control_messages_without_nonces.txt");
    bool is_of_job = true;
    for (std::string line; std::getline(file, line);) {
      if (line == "# Not part of that job.") is_of_job = false;
      if (line.empty() || line.front() == '#') continue;
      (is_of_job ? job_ : others_)
          .push_back({static_cast<std::uint64_t>(line.front() - '0'), line.at(1) == '<', line.substr(3)});
    }
  }

  static MembershipOptions daemon_options(const Hello& hello) {
    auto out = options_of(hello, {1700000000, 7, 0});
    out.greater_part_only = false;
    out.nonce = [] { return std::string(32, 'c'); };
    return out;
  }

  // Says this to the host, and keeps what the nodes are told.
  void say(HostCore& host, const Recorded& line) {
    now_ += 100ms;
    const auto message = to_membership_of(line.text).value();
    const auto node = NodeId{line.connection};
    if (const auto* hello = std::get_if<Hello>(&message))
      keep(host.step(HostCore::Came{node, *hello, "10.0.0." + std::to_string(line.connection)}, now_));
    else
      keep(host.step(Heard{node, message}, now_));
  }

  void keep(const HostCore::Actions& actions) {
    for (const auto& tell : testing::all<HostCore::Tell>(actions))
      told_[static_cast<std::uint64_t>(tell.node)].push_back(tell.message);
  }

  std::vector<Recorded> job_, others_;
  std::map<std::uint64_t, std::deque<ToAgent>> told_;
  TimePoint now_{1000s};
};

void expect_contains(const nlohmann::json& all, const nlohmann::json& part, const std::string& place) {
  ASSERT_EQ(all.type(), part.type()) << place;
  if (part.is_array()) {
    ASSERT_EQ(all.size(), part.size()) << place;
    for (std::size_t i = 0; i < part.size(); ++i) expect_contains(all[i], part[i], place + "/" + std::to_string(i));
    return;
  }
  if (!part.is_object()) {
    EXPECT_EQ(all, part) << place;
    return;
  }
  for (const auto& [name, value] : part.items()) {
    ASSERT_TRUE(all.contains(name)) << place << "/" << name;
    expect_contains(all.at(name), value, place + "/" + name);
  }
}

TEST_F(OlderPeer, EachFieldIsStillReadAndWritten) {
  ASSERT_FALSE(job_.empty());
  ASSERT_FALSE(others_.empty());
  for (const auto* part : {&job_, &others_})
    for (const auto& line : *part) {
      SCOPED_TRACE(line.text);
      const auto again = line.is_to_agent ? to_json(to_agent_of(line.text, kWorkersOfEach).value())
                                          : to_json(to_membership_of(line.text).value());
      expect_contains(nlohmann::json::parse(again), nlohmann::json::parse(line.text), "");
    }
}

TEST_F(OlderPeer, OldNodesRunTheirJobAtTodaysEndpoint) {
  ASSERT_FALSE(job_.empty());
  HostCore host(daemon_options(std::get<Hello>(to_membership_of(job_.front().text).value())), false, now_);
  for (const auto& line : job_) {
    SCOPED_TRACE(std::to_string(line.connection) + ": " + line.text);
    if (!line.is_to_agent) {
      say(host, line);
      continue;
    }
    auto& told = told_[line.connection];
    ASSERT_FALSE(told.empty());
    const auto then = to_agent_of(line.text, kWorkersOfEach).value();
    ASSERT_EQ(told.front().index(), then.index()) << to_json(told.front());
    if (const auto* verdict = std::get_if<FinishJob>(&told.front())) {
      EXPECT_EQ(verdict->exit_code, std::get<FinishJob>(then).exit_code);
      EXPECT_EQ(verdict->what, std::get<FinishJob>(then).what);
    }
    if (const auto* welcome = std::get_if<Welcome>(&told.front())) {
      EXPECT_EQ(welcome->version, 1);
    }
    told.pop_front();
  }
  for (const auto& [connection, told] : told_) EXPECT_TRUE(told.empty()) << connection << ": " << to_json(told.front());
  EXPECT_TRUE(host.membership().is_finished());
}

// The daemon was upgraded while they worked.
TEST_F(OlderPeer, OldNodesGoOnWithTheirRoundAtARestartedEndpointOfToday) {
  ASSERT_FALSE(others_.empty());
  HostCore host(daemon_options(std::get<Hello>(to_membership_of(others_.front().text).value())), false, now_);
  for (const auto& line : others_)
    if (line.text.find("\"held\"") != std::string::npos) say(host, line);
  ASSERT_EQ(host.membership().view().nodes.size(), 2U);
  EXPECT_EQ(host.membership().view().round, -1) << "what they say has no proof: others may come that have one";
  now_ += Membership::restate_timeout_of(3s);
  keep(host.tick(now_));
  const auto view = host.membership().view();
  EXPECT_EQ(view.phase, "running");
  EXPECT_EQ(view.round, 0);
  EXPECT_EQ(view.restart_count, 1);
  for (const auto& node : view.nodes) EXPECT_TRUE(node.group_rank) << node.host_name;
  for (const std::uint64_t connection : {3, 4})
    say(host, {connection, false, to_json(ToMembership(RoundEnded{0, {}, 0, false}))});
  ASSERT_TRUE(host.membership().verdict());
  EXPECT_EQ(host.membership().verdict()->exit_code, 0);
}

TEST_F(OlderPeer, TodaysNodeRunsAJobAtAnOldEndpoint) {
  Hello hello;
  hello.run_id = "bert";
  hello.node_key = std::string(32, 'a');
  hello.workers = kWorkersOfEach;
  Session session({}, hello, now_);
  const auto begun = session.step(Session::Begin{}, now_);
  ASSERT_EQ(testing::all<Session::Connect>(begun).size(), 1U);
  for (const auto& line : job_) {
    if (line.connection != 1) continue;
    SCOPED_TRACE(line.text);
    now_ += 100ms;
    if (line.is_to_agent) {
      const auto message = to_agent_of(line.text, kWorkersOfEach).value();
      const auto handed = testing::all<Session::HandOn>(session.step(Session::Heard{message}, now_));
      ASSERT_EQ(handed.size(), 1U);
      EXPECT_EQ(handed.front().message, message);
      continue;
    }
    const auto message = to_membership_of(line.text).value();
    const auto actions = std::holds_alternative<Hello>(message)
                             ? session.step(Session::Connected{{"10.0.0.1", 29400}}, now_)
                             : session.step(Session::Said{message}, now_);
    const auto sent = testing::all<Session::Send>(actions);
    ASSERT_EQ(sent.size(), 1U);
    ASSERT_EQ(sent.front().message.index(), message.index());
    if (!std::holds_alternative<Hello>(message)) {
      EXPECT_EQ(sent.front().message, message);
    }
  }
  EXPECT_FALSE(session.next_deadline()) << "it is over";
}

TEST_F(OlderPeer, TodaysNodeComesAgainWithTheRoundOfAnOldEndpoint) {
  Hello hello;
  hello.node_key = std::string(32, 'a');
  Session session({}, hello, now_);
  (void)session.step(Session::Begin{}, now_);
  (void)session.step(Session::Connected{{"10.0.0.1", 29400}}, now_);
  for (const auto& line : job_)
    if (line.connection == 1 && line.is_to_agent &&
        (line.text.find("\"welcome\"") != std::string::npos || line.text.find("\"start_round\"") != std::string::npos))
      (void)session.step(Session::Heard{to_agent_of(line.text, kWorkersOfEach).value()}, now_);
  now_ += 10s;
  (void)session.step(Session::Ended{}, now_);
  const auto sent = testing::all<Session::Send>(session.step(Session::Connected{{"10.0.0.1", 29400}}, now_));
  ASSERT_EQ(sent.size(), 1U);
  const auto again = std::get<Hello>(to_membership_of(to_json(sent.front().message)).value());
  ASSERT_TRUE(again.held);
  EXPECT_EQ(again.held->round.number, 1U);
  EXPECT_TRUE(again.held->nonces.empty());
}

}  // namespace
}  // namespace ddp::rendezvous
