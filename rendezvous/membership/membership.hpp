// Decides which nodes make up the job, round by round, and how it ends.
//
// Pure: events and the time go in, messages for the agents come out. No socket, no clock, no random numbers, so the same
// inputs always give the same outputs.
//
// The rules: a round begins when all nodes that are wanted are there; group ranks are sticky, a newcomer takes a freed one;
// the first failure anywhere stops every node; the next round begins when no process of this one is left on any node.
// A failure costs one restart of the job's budget. A change of members costs none: nodes that come below the maximum are
// taken in by a new round once the last call is over, and where a node is lost the others go on without it, if enough are
// left. If too few are left, the wait for another costs one restart, so that a node that is lost again and again ends the
// job. Nodes beyond the maximum wait as spares. Where nodes fell silent, only the greater part of the last round goes on.
//
// Threads: one caller at a time (the event loop's thread).
// Protocol: docs/control_channel.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/membership/messages.hpp"

namespace ddp::rendezvous {

using TimePoint = std::chrono::steady_clock::time_point;
enum class NodeId : std::uint64_t {};  // never reused: a node that comes back gets a new one

struct MembershipOptions {
  std::string run_id;
  int nodes_min = 1, nodes_max = 1;  // a round never starts with fewer; with nodes_max it starts at once
  int restarts_max = 0;              // of the whole job
  std::chrono::milliseconds restart_window{0};  // only those of this time before a failure count; 0: all do
  std::chrono::milliseconds join_timeout{600'000};
  std::chrono::milliseconds last_call_timeout{30'000};  // wait for more nodes between the minimum and the maximum
  // After nodes fell silent only the greater part of a round's nodes goes on. Where membership is not on a node of the job
  // and never stops, whoever reaches it may.
  bool greater_part_only = true;
  RoundId term;  // its number is not used; a round that is heard of makes it greater
  std::chrono::milliseconds resume_window{1'000};    // in which a node may come again whose connection broke
  std::chrono::milliseconds restate_timeout{7'000};  // in which the nodes of a round come that this membership did not begin:
                                                     // twice the heartbeat limit and a second
  std::optional<int> lost_group_rank;  // whose end or silence made this membership begin: nobody waits for that node
};

// Those of a job that begins with this node.
MembershipOptions options_of(const Hello& hello, RoundId term);

// Events.
struct Heard { NodeId from; ToMembership message; };
struct Joined { NodeId node; Hello hello; std::string seen_address; bool is_endpoint_host = false; };
// A node whose end is not proven has fallen silent: it may still run, behind a broken network.
struct Left { NodeId node; std::string why; bool is_end_proven = true; };
// The connection broke, which proves nothing: the node may come again within the resume window, as a Joined with the same
// node key and another NodeId. Where it does not it has left, and its end is proven.
struct Disconnected { NodeId node; std::string why; };
// The guardian of that node says that no process of the job is left there, and no ddprun.
struct Farewell { std::string node_key; };
using MembershipEvent = std::variant<Joined, Heard, Left, Disconnected, Farewell>;

// Actions.
struct Send { NodeId to; ToAgent message; };
struct Say { std::string text; };  // to the operator at the endpoint
// The node has come again on another connection: this one is closed, and nothing of it is reported any more.
struct Drop { NodeId node; };
// The nodes here are too few to go on, or others have gone on already: this membership is over, without a verdict for the
// job. Its nodes look for another one.
struct StepDown { std::string why; };
using MembershipAction = std::variant<Send, Say, Drop, StepDown>;

class Membership {
 public:
  using Actions = std::vector<MembershipAction>;

  // Requires 1 <= nodes_min <= nodes_max. The wait for nodes begins now.
  Membership(MembershipOptions options, TimePoint now);

  // A node that was refused, or was told that the job has finished, need not be reported as Left.
  [[nodiscard]] Actions step(const MembershipEvent& event, TimePoint now);

  // Does what has fallen due; calling early or twice is harmless.
  [[nodiscard]] Actions tick(TimePoint now);

  // When tick() next has work; empty while only an event can change anything.
  [[nodiscard]] std::optional<TimePoint> next_deadline() const { return deadline_; }

  bool is_finished() const { return phase_ == Phase::finished; }
  bool is_ending() const { return is_finished() || stop_signal_ != 0; }  // it takes in nobody for another round
  bool is_empty() const { return nodes_.empty(); }
  bool knows(const std::string& node_key) const;  // whose farewell is for this job
  RoundId term() const { return options_.term; }  // of the rounds that it begins; its number is not used

  // What an operator may ask.
  struct View {
    struct Node {
      std::string host_name, address;  // the address as it is seen; empty for this process's own node
      std::optional<int> group_rank;   // of a member of the current or last round
    };
    std::string phase;        // waiting for nodes, starting, running, stopping, finished
    std::int64_t round = -1;  // -1: none yet
    int world_size = 0;       // of the current or last round
    int nodes_min = 1, nodes_max = 1;
    int restart_count = 0, restarts_max = 0;
    std::string last_reason;  // why the round before ended; empty in the first
    std::vector<Node> nodes;  // members and spares
  };
  View view() const;

 private:
  enum class Phase { gathering, opening_store, running, stopping, finished };

  struct Node {
    Hello hello;
    std::string seen_address;
    bool is_endpoint_host = false;
    std::optional<int> group_rank;  // in this round, or in the last one it took part in
    bool is_member = false;         // of the current round
    bool has_ended = false;         // no process of the current round is there, not yet or no longer
    std::int64_t first_round = -1;  // that began with it
    std::optional<TimePoint> stop_asked;  // when it was told to stop first
  };

  void take(const Joined& event, TimePoint now);
  void take(const Heard& event, TimePoint now);
  void take(const Left& event, TimePoint now);
  void take(const Disconnected& event, TimePoint now);
  void take(const Farewell& event, TimePoint now);
  void take(NodeId from, const StoreOpened& message, TimePoint now);
  void take(NodeId from, const RoundFailed& message);
  void take(NodeId from, const RoundEnded& message, TimePoint now);
  void take(NodeId from, const StopAsked& message, TimePoint now);

  std::optional<Refused> objection(const Hello& hello) const;
  void gather(TimePoint now);
  void call_newcomers(TimePoint now);
  void form_round(TimePoint now);
  void give_group_ranks(std::vector<NodeId>& members);
  void start_round(std::uint16_t store_port, TimePoint now);
  void stop_round(int signal_number, bool kill, const std::string& why, std::optional<NodeId> knows_already = {});
  void end_round_if_all_have(TimePoint now);
  void begin_next_round(TimePoint now);
  void finish(FinishJob verdict);
  void finish_minority();
  const FailureReport* cause() const;
  bool is_change_of_members() const;
  bool can_do_without(const Node& node, const RoundEnded& message) const;
  bool is_budget_left(TimePoint now);
  bool is_next_round_due(TimePoint now);
  bool is_greater_part_here() const;
  std::string names_of_nodes() const;
  std::vector<NodeId> members() const;  // of the current round, in the order of group ranks
  std::string why_the_round_ended() const;
  std::chrono::milliseconds job_time(TimePoint now) const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(now - began_);
  }
  void send(NodeId to, const ToAgent& message) { out_.emplace_back(std::in_place_type<Send>, to, message); }

  MembershipOptions options_;
  const TimePoint began_;  // on the job's clock: 0
  Phase phase_ = Phase::gathering;
  std::map<NodeId, Node> nodes_;
  std::optional<TimePoint> deadline_;
  TimePoint gathering_ends_;
  std::optional<TimePoint> last_call_ends_;
  bool is_wait_said_ = false;  // once for each wait
  std::int64_t round_ = -1;            // number of the current or last round
  std::int64_t round_with_logs_ = -1;  // the highest that any node has logs of; the next one is above it
  int rounds_begun_ = 0;
  int restart_count_ = 0;
  std::deque<TimePoint> restarts_;  // of the budget, the oldest first
  int world_size_ = 0;
  // Of the current round:
  std::vector<FailureReport> failures_;
  int stopped_ = 0;
  bool tree_survived_ = false;
  std::string lost_node_;  // why a member left; empty if none did
  std::string growth_;     // who has come, where the round was stopped for them
  TimePoint round_began_;
  std::chrono::milliseconds lost_at_{0}, growth_stopped_{0};  // job time of these
  std::set<int> gone_, silent_;  // group ranks of members that left, by whether their end is proven
  std::string reason_;     // one line on why the last round ended, for the next one
  // Of the job:
  int stop_signal_ = 0;
  Actions out_;
};

// Whether host name `a` goes before `b`: runs of digits compare as numbers, so node2 goes before node10.
bool is_before_naturally(const std::string& a, const std::string& b);

// Of several failures, the one that the others follow from: the earliest on the job's clock; but one that was killed from
// outside (SIGKILL, a fault of memory) goes before one that ended by itself up to 50 ms earlier, because clocks of nodes
// and reports of deaths are no more exact than that. Requires at least one; returns its index.
std::size_t first_cause(const std::vector<FailureReport>& failures);

constexpr int kRendezvousFailed = 77;  // ddprun's own exit code

}  // namespace ddp::rendezvous
