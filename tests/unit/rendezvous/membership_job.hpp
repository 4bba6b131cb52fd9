// A job of nodes that obey, for the tests of membership.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/membership/membership.hpp"

namespace ddp::rendezvous {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr Ending kKilled{Ending::Kind::killed, SIGKILL, false};
inline Ending exited(int code) { return {Ending::Kind::exited, code, false}; }

inline NodeId node(std::uint64_t number) { return NodeId{number}; }

// Each node begins and ends its rounds when it is told to. Node 3 has the key "key-3".
class Job : public ::testing::Test {
 protected:
  void begin(int nodes_min, int nodes_max, int restarts_max = 0) {
    auto options = more_options;
    options.run_id = "job";
    options.nodes_min = nodes_min;
    options.nodes_max = nodes_max;
    options.restarts_max = restarts_max;
    options.join_timeout = 60s;
    options.last_call_timeout = 10s;
    options.restart_window = restart_window;
    options.greater_part_only = greater_part_only;
    options.term = {1700000000, 7, 0};
    options.nonce = [this] { return "nonce-" + std::to_string(++nonces); };
    membership.emplace(options, now);
    hello.run_id = "job";
    hello.nodes_min = nodes_min;
    hello.nodes_max = nodes_max;
    hello.restarts_max = restarts_max;
    hello.restart_window = restart_window;
    hello.join_timeout = options.join_timeout;
    hello.last_call_timeout = options.last_call_timeout;
    hello.workers = 2;
  }

  void join(std::uint64_t id, const std::string& host, std::optional<int> node_rank = {}, bool is_host = false) {
    auto its = hello;
    its.host_name = host;
    its.node_rank = node_rank;
    its.node_key = "key-" + std::to_string(id);
    hear(membership->step(Joined{node(id), its, "10.0.0." + std::to_string(id), is_host}, now));
  }
  void disconnects(std::uint64_t id) { hear(membership->step(Disconnected{node(id), "reset"}, now)); }
  // Node `before` on another connection, with what it has of a round. Connection 0 is that of the endpoint's host.
  void comes_again(std::uint64_t before, std::uint64_t id, std::optional<Held> held) {
    auto its = hello;
    its.host_name = "h" + std::to_string(before);
    its.node_key = "key-" + std::to_string(before);
    its.held = std::move(held);
    hear(membership->step(Joined{node(id), its, "10.0.0." + std::to_string(before), id == 0}, now));
  }
  Held held_by(std::uint64_t id) const {
    const auto& start = started.at(id);
    Held out{start.round, start.group_rank, start.group_world_size, start.restart_count, false,
             false,       nonces_of.at(id)};
    out.spent_restarts = start.spent_restarts;
    return out;
  }
  void says(std::uint64_t id, const ToMembership& message) { hear(membership->step(Heard{node(id), message}, now)); }
  void leaves(std::uint64_t id) { hear(membership->step(Left{node(id), "gone", true}, now)); }
  void falls_silent(std::uint64_t id) { hear(membership->step(Left{node(id), "silent"}, now)); }
  void pass(std::chrono::milliseconds time) {
    const auto end = now + time;
    for (auto next = membership->next_deadline(); next && *next < end; next = membership->next_deadline()) {
      now = std::max(now, *next);
      hear(membership->tick(now));
    }
    now = end;
    hear(membership->tick(now));
  }
  // This process does not run meanwhile.
  void sleep(std::chrono::milliseconds time) {
    now += time;
    hear(membership->tick(now));
  }

  // Keeps the last message of each kind for each node, and answers where an agent does so at once.
  void hear(const Membership::Actions& actions) {
    std::vector<std::pair<NodeId, ToMembership>> answers;
    for (const auto& action : actions) {
      if (const auto* say = std::get_if<Print>(&action)) said.push_back(say->text);
      if (const auto* drop = std::get_if<Drop>(&action)) dropped.push_back(static_cast<std::uint64_t>(drop->node));
      if (const auto* down = std::get_if<StepDown>(&action)) stepped_down = down->why;
      const auto* send = std::get_if<Send>(&action);
      if (send == nullptr) continue;
      const auto id = static_cast<std::uint64_t>(send->to);
      if (const auto* start = std::get_if<StartRound>(&send->message)) {
        started[id] = *start;
        nonces_of[id].insert(nonces_of[id].begin(), start->nonce);
      }
      if (const auto* whole = std::get_if<RoundEstablished>(&send->message)) established[id] = whole->round;
      if (const auto* stop = std::get_if<StopRound>(&send->message)) stopped[id].push_back(*stop);
      if (const auto* prepare = std::get_if<PrepareStop>(&send->message)) {
        prepared[id].push_back(*prepare);
        if (!takes_stops) answers.emplace_back(send->to, StopReady{prepare->round, {}});
      }
      if (const auto* at = std::get_if<StopAt>(&send->message)) stops_at[id].push_back(*at);
      if (const auto* check = std::get_if<CheckLinks>(&send->message)) checked[id].push_back(*check);
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
    report.after = 1min;  // so no round has failed at once, unless a test says so
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
  MembershipOptions more_options;  // begin() sets the common ones
  TimePoint now{1h};
  int nonces = 0;
  std::map<std::uint64_t, std::vector<std::string>> nonces_of;  // nodes, the newest first
  bool stores_open = true;                                      // at once
  bool takes_stops = false;                                     // else the answer is given by the test
  bool greater_part_only = true;
  std::chrono::milliseconds restart_window{0};
  std::map<std::uint64_t, StartRound> started;
  std::map<std::uint64_t, std::vector<StopRound>> stopped;
  std::map<std::uint64_t, std::vector<PrepareStop>> prepared;
  std::map<std::uint64_t, std::vector<StopAt>> stops_at;
  std::map<std::uint64_t, std::uint32_t> established;
  std::map<std::uint64_t, std::vector<CheckLinks>> checked;
  std::map<std::uint64_t, Refused> refused;
  std::map<std::uint64_t, FinishJob> finished;
  std::vector<std::pair<std::uint64_t, OpenStore>> opened;
  std::vector<std::string> said;
  std::vector<std::uint64_t> dropped;
  std::optional<std::string> stepped_down;
};

}  // namespace ddp::rendezvous
