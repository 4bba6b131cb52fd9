// Decides which nodes make up the job, round by round, and how it ends.
//
// Pure: events and the time go in, messages for the agents come out. No socket, no clock, no random numbers but those
// that the options give, so the same inputs always give the same outputs.
//
// The rules: a round begins when all nodes that are wanted are there; group ranks are sticky, a newcomer takes a freed
// one; the first failure anywhere stops every node; the next round begins when no process of this one is left on any
// node. A failure costs one restart of the job's budget. A change of members costs none: nodes that come below the
// maximum are taken in by a new round once the last call is over, and where a node is lost the others go on without it,
// if enough are left. If too few are left, the wait for another costs one restart, so that a node that is lost again
// and again ends the job. Nodes beyond the maximum wait as spares. Where nodes fell silent, only the greater part goes
// on (quorum.hpp).
//
// Who is told to stop may stop all ranks at one step, if all workers take part in that: each node says which step it
// can still stop at, the greatest of these is the one, and workers end there by themselves. Where a node can't, or does
// not answer at once, all are stopped by the signal. A warning begins the same, but waits, and stops nobody by a
// signal.
//
// A scheduler signals every process of a job, at about the same time. A node whose workers die of that says so when its
// round ends: the job is being stopped then, also where nobody has asked for it yet. What ends by itself after a signal
// has ended workers anywhere, or a little before, follows from that.
//
// Where this process itself did not run for so long that the nodes may have taken it for lost (it was stopped, or
// starved; of a machine that is suspended the clock stands still, and nothing is noticed), the ends of their
// connections prove nothing for a while: they may have gone on elsewhere, and even have ended there.
//
// Membership is soft state. A node whose connection broke comes again with its key and is told again what it has not
// answered. Where membership begins anew, after its own process was lost, nodes come that still have a round. What they
// claim and say has no effect before it is clear which round most of them bear out (claims.hpp). That round is adopted;
// its other nodes are awaited, and until they have come or been given up no round follows. Once there is a round and
// its greater part is here, whoever claims another one is refused, or ends what it has.
//
// Threads: one caller at a time (the event loop's thread).
// Protocol: docs/control_channel.md.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/membership/claims.hpp"
#include "rendezvous/membership/group_ranks.hpp"
#include "rendezvous/membership/limits.hpp"
#include "rendezvous/membership/messages.hpp"
#include "rendezvous/membership/quorum.hpp"
#include "rendezvous/membership/rank_set.hpp"
#include "rendezvous/membership/run_report.hpp"

namespace ddp::rendezvous {

enum class NodeId : std::uint64_t {};  // never reused: a node that comes back gets a new one

// What a daemon knows of a job of the same name that was given up or ended before.
struct JobBefore {
  RoundId last_round;
  int restart_count = 0;  // of a job that may go on
};

struct MembershipOptions {
  std::string run_id;
  std::string slurm_run;                        // only nodes of this one, and those that name none
  int nodes_min = 1, nodes_max = 1;             // a round never starts with fewer; with nodes_max it starts at once
  int restarts_max = 0;                         // of the whole job
  std::chrono::milliseconds restart_window{0};  // only those of this time before a failure count; 0: all do
  std::chrono::milliseconds join_timeout{600'000};
  std::chrono::milliseconds last_call_timeout{30'000};  // wait for more nodes between the minimum and the maximum
  // After nodes fell silent only the greater part of a round's nodes goes on. Where membership is not on a node of the
  // job and never stops, whoever reaches it may.
  bool greater_part_only = true;
  RoundId term;                                     // its number is not used; a round that is heard of makes it greater
  std::uint64_t term_max = std::uint64_t{1} << 62;  // of a round that a node may have
  std::chrono::milliseconds heartbeat_timeout{3'000};  // silence for as long is a node's loss
  std::optional<TimePoint> no_round_before;            // the first one: others may be about to come that still have one
  JobBefore before;                                    // whoever has an older round than its last one was left behind
  std::function<std::string()> nonce;  // of each round another one, that nobody can guess: 32 hexadecimal digits
  std::optional<int> lost_group_rank;  // whose end or silence made this membership begin: nobody waits for that node

  // In which a node may come again whose connection broke: it is silent meanwhile.
  std::chrono::milliseconds resume_window() const {
    return std::min<std::chrono::milliseconds>(std::chrono::seconds(1), heartbeat_timeout);
  }
};

// Those of a job that begins with this node. Its term is made newer than that round.
MembershipOptions options_of(const Hello& hello, RoundId term, const JobBefore& before = {});

// Events.
struct Heard {
  NodeId from;
  ToMembership message;
};
struct Joined {
  NodeId node;
  Hello hello;
  std::string seen_address;
  bool is_endpoint_host = false;
};
// A node whose end is not proven has fallen silent: it may still run, behind a broken network.
struct Left {
  NodeId node;
  std::string why;
  bool is_end_proven = true;
};
// The connection broke, which proves nothing: the node may come again within the resume window, as a Joined with the
// same node key and another NodeId. Where it does not it has left, and its end is proven.
struct Disconnected {
  NodeId node;
  std::string why;
};
// The guardian of that node says that no process of the job is left there, and no ddprun.
struct Farewell {
  std::string node_key;
};
using MembershipEvent = std::variant<Joined, Heard, Left, Disconnected, Farewell>;

// Actions.
struct Send {
  NodeId to;
  ToAgent message;
};
struct Print {
  std::string text;
};  // to the operator at the endpoint
// The node has come again on another connection: this one is closed, and nothing of it is reported any more.
struct Drop {
  NodeId node;
};
// The nodes here are too few to go on, or others have gone on already: this membership is over, without a verdict for
// the job. Its nodes look for another one.
struct StepDown {
  std::string why;
};
using MembershipAction = std::variant<Send, Print, Drop, StepDown>;

class Membership {
 public:
  using Actions = std::vector<MembershipAction>;

  // Requires 1 <= nodes_min <= nodes_max. The wait for nodes begins now.
  Membership(MembershipOptions options, TimePoint now);

  // A node that was refused, or was told that the job has finished, need not be reported as Left.
  [[nodiscard]] Actions step(MembershipEvent event, TimePoint now);

  // Does what has fallen due; calling early or twice is harmless.
  [[nodiscard]] Actions tick(TimePoint now);

  // When tick() next has work; empty while only an event can change anything.
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  bool is_finished() const { return phase_ == Phase::finished; }
  bool is_ending() const { return is_finished() || stop_signal_ != 0; }  // it takes in nobody for another round
  bool is_empty() const { return nodes_.empty(); }
  bool is_abandoned() const {  // so is a job that has begun no round, as soon as nobody is connected
    return nodes_.empty() || (!has_begun() && nodes_.size() == absences_.size());
  }
  bool has_begun() const { return round_id_ != RoundId{}; }    // a round
  bool knows(const std::string& node_key) const;               // whose farewell is for this job
  std::optional<Refused> other_job(const Hello& hello) const;  // where it is not this one that the node wants to join
  bool is_full() const;  // a round of as many nodes as the job takes is under way: who comes now is a spare
  int nodes_max_for(const Hello& hello) const {  // of the job, as far as this node can tell
    return claims_round(hello) && follows_claims() ? std::max(hello.nodes_max, options_.nodes_max) : options_.nodes_max;
  }
  const std::optional<FinishJob>& verdict() const { return verdict_; }  // once it is finished, if it has one
  const RoundId& last_round() const { return round_id_; }  // that has begun here or was adopted, or is about to
  int restart_count() const { return budget_.count(); }
  const std::string& stop_why() const { return stop_why_; }  // why the job is told to stop; empty if it is not
  std::string_view phase_name() const;                       // waiting for nodes, starting, running, stopping, finished
  RoundId term() const { return options_.term; }             // of the rounds that it begins; its number is not used

  // In which the nodes of a round come that this membership did not begin. Those that notice last that the endpoint
  // before is gone do so a heartbeat limit later, and may then have to look for it.
  static constexpr std::chrono::milliseconds restate_timeout_of(std::chrono::milliseconds heartbeat_timeout) {
    return 2 * heartbeat_timeout + std::chrono::seconds(1);
  }

  // What an operator may ask.
  struct Summary {
    std::string phase;        // phase_name()
    std::int64_t round = -1;  // -1: none yet
    int world_size = 0;       // of the current or last round
    int nodes_min = 1, nodes_max = 1;
    int restart_count = 0, restarts_max = 0;
    std::string last_reason;  // why the round before ended; empty in the first
    std::size_t node_count = 0;
  };
  struct View : Summary {
    struct Node {
      std::string host_name, address;  // the address as it is seen; empty for this process's own node
      std::optional<int> group_rank;   // of a member of the current or last round
    };
    std::vector<Node> nodes;  // members and spares
  };
  Summary summary() const;
  View view() const;

 private:
  enum class Phase { gathering, opening_store, running, stopping, finished };

  struct Node {
    Hello hello;
    std::string seen_address;
    bool is_endpoint_host = false;
    std::optional<int> group_rank;               // in this round, or in the last one it took part in
    bool is_member = false;                      // of the current round
    bool has_ended = false;                      // no process of the current round is there, not yet or no longer
    bool has_stepped = false;                    // every worker there has finished a step of the current round
    bool takes_part = false;                     // in a stop at one step, all its workers do
    std::optional<std::uint64_t> stop_call;      // from which on they could, as it answered in this round
    std::int64_t first_round = -1;               // that began with it
    std::optional<TimePoint> stop_asked;         // when it was told to stop first
    int stop_signal = 0;                         // of a spare
    bool was_warned = false;                     // that it will be told to stop
    bool says_stop_again = false;                // after a broken connection, and it is no second one
    std::optional<StartRound> told;              // of the current round; empty where another membership began it
    bool is_claimant = false;                    // of a round, while it is not decided which one is adopted
    std::map<std::size_t, ToMembership> said{};  // meanwhile, the last of each kind
  };
  struct Absence {
    TimePoint until;
    std::string why;
  };

  void take(Joined&& event, TimePoint now);
  void take(const Heard& event, TimePoint now);
  void take(const Left& event, TimePoint now);
  void take(const Disconnected& event, TimePoint now);
  void take(const Farewell& event, TimePoint now);
  void take(NodeId from, const StoreOpened& message, TimePoint now);
  void take(NodeId from, const RoundStarted& message, TimePoint now);
  void take(NodeId from, const FirstStep& message, TimePoint now);
  void take(NodeId from, const RoundFailed& message, TimePoint now);
  void take(NodeId from, const RoundEnded& message, TimePoint now);
  void take(NodeId from, const StopAsked& message, TimePoint now);
  void take(NodeId from, const StopReady& message, TimePoint now);

  void notice_own_absence(TimePoint now);

  // Nodes (membership.cpp).
  std::optional<Refused> objection(const Hello& hello) const;
  bool is_possible(const Hello& hello) const;
  // Whoever was left behind states its round too, but does not claim that it goes on.
  static bool claims_round(const Hello& hello) { return hello.held && !hello.held->is_left_behind; }
  // A daemon's settings are those of the node that comes first, which may be anybody's. A round comes with its own.
  bool follows_claims() const { return rounds_begun_ == 0 && !options_.greater_part_only; }
  void go_on(TimePoint now);
  Node forget(NodeId id);
  bool end_absence(NodeId id);  // returns whether there was one
  void forget_absences();
  void note_loss(const std::string& what, TimePoint happened, TimePoint now);
  void lose(const Node& node, const std::string& why, TimePoint happened, TimePoint now);
  void gather(TimePoint now);
  void end_gathering(TimePoint now);
  void call_newcomers(TimePoint now);
  void let_go_of_store_opener(TimePoint now);
  std::string names_of_nodes() const;
  // What a host that ends rounds is remembered by. Its name alone may be said by any node.
  static std::string place_of(const std::string& host, const std::string& seen_address) {
    return host + '@' + seen_address;
  }
  static std::string place_of(const Node& node) { return place_of(node.hello.host_name, node.seen_address); }

  // Rounds (membership_rounds.cpp).
  int count_available() const;
  std::vector<NodeId> candidates(TimePoint now) const;
  void form_round(TimePoint now);
  void forget_round();
  void ask_for_store(const std::vector<NodeId>& members);
  void count_restarts_before(const std::vector<NodeId>& members, TimePoint now);
  void start_round(std::uint16_t store_port, TimePoint now);
  std::vector<Successor> successors(const std::vector<NodeId>& members) const;
  void stop_round(int signal_number, bool kill, const std::string& why, TimePoint now,
                  std::optional<NodeId> knows_already = {});
  void refuse_those_that_never_stop(TimePoint now);
  void end_round_if_all_have(TimePoint now);
  void begin_next_round(TimePoint now);
  void blame_host(TimePoint now);
  std::optional<FinishJob> verdict_of_stop_at_step() const;
  void finish(FinishJob verdict, TimePoint now);
  static bool is_report_for(const Node& node);
  void send_verdict(NodeId to, bool with_report);
  void step_down(const std::string& why);
  std::string why_too_few() const;
  void forgive_what_follows_from_signals();
  const FailureReport* cause() const;
  bool is_change_of_members() const;
  bool can_do_without(const Node& node, const RoundEnded& message) const;
  std::optional<int> rank_first_of(const Node& node) const;
  FailureReport own_failure(const Node& node, FailureReport failure) const;
  bool is_next_round_due(TimePoint now);
  bool may_another_round_follow(TimePoint now);
  bool may_go_on() const;
  template <class Predicate>
  bool is_any(NodeId& begin, Predicate is_it) const;
  std::vector<NodeId> members() const;  // of the current round, in the order of group ranks
  bool is_member_absent() const;
  bool has_spares() const { return nodes_.size() != member_count_; }  // or, between rounds, nodes without one
  std::string why_the_round_ended() const;

  // ddprun is told to stop (membership_stop.cpp).
  void take_warning(NodeId from, const StopAsked& message, TimePoint now);
  void take_signalled(NodeId from, const RoundEnded& message, TimePoint now);
  void note_signalled(std::chrono::milliseconds when);
  void stop_spare(NodeId id, int signal_number, TimePoint now);
  void dismiss(NodeId spare, int signal_number);
  void ask_for_a_step(TimePoint now);
  void ask_for_calls(TimePoint now);
  void go_on_with_stop(TimePoint now);
  void forget_stop_at_step();
  void tell_of_stop(NodeId id, const Node& node);
  void give_up_agreement(TimePoint now);
  std::chrono::milliseconds longest_grace() const;

  // Nodes that come again, and rounds that another membership began (membership_resume.cpp).
  std::optional<NodeId> find(const std::string& node_key) const;
  void come_again(NodeId before, const Joined& event, TimePoint now);
  void tell_again(NodeId id, Node& node);
  void take_in_with_round(NodeId id, const Held& held, TimePoint now);
  bool are_claims_open() const { return restate_ends_ && !is_adopted_; }
  void claim(NodeId id, const Held& held, TimePoint now);
  void hold_back(Node& node, const ToMembership& message);
  void decide_claims(TimePoint now);
  void close_claims(TimePoint now);
  void take_settings_of(const Held& claim, TimePoint now);
  void take_claim_of_another_round(NodeId id, const Held& held, TimePoint now);
  void name_claimant(const Node& node, const Held& held, TimePoint now);
  void adopt(const Held& held, TimePoint now);
  void seat(NodeId id, const Held& held, TimePoint now);
  void end_older_round(NodeId id, std::uint32_t round);
  void give_up_awaited(TimePoint now);
  void consider_losses(TimePoint now);

  // Who serves the job in an agent looks at the clock that often, so that it can tell.
  bool looks_at_clock() const {
    return options_.greater_part_only && options_.nodes_max > 1 && rounds_begun_ > 0 && !is_finished();
  }
  std::chrono::milliseconds look_period() const { return options_.heartbeat_timeout / 4; }

  std::chrono::milliseconds restate_timeout() const { return restate_timeout_of(options_.heartbeat_timeout); }
  std::chrono::milliseconds job_time(TimePoint now) const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(now - began_);
  }
  // What a node says of a time, which may be anything.
  TimePoint at(std::chrono::milliseconds time, TimePoint now) const {
    return began_ + std::clamp(time, std::chrono::milliseconds(0), job_time(now));
  }
  void send(NodeId to, ToAgent message) { out_.emplace_back(Send{to, std::move(message)}); }
  void expect_sends_to_members() { out_.reserve(out_.size() + member_count_); }
  void print(std::string text) { out_.emplace_back(Print{std::move(text)}); }

  MembershipOptions options_;
  const TimePoint began_;  // on the job's clock: 0
  Phase phase_ = Phase::gathering;
  std::map<NodeId, Node> nodes_;
  std::size_t member_count_ = 0;                 // of nodes_, so that few events walk over all of them
  std::set<int> wished_ranks_;                   // of nodes_, so that few are searched for who has one already
  NodeId found_running_{}, found_unanswered_{};  // where the searches for such a node begin
  std::map<std::string, NodeId> nodes_by_key_;
  std::map<NodeId, Absence> absences_;                   // of nodes whose connection broke
  std::set<std::pair<TimePoint, NodeId>> absence_ends_;  // of absences_
  std::map<NodeId, std::uint32_t> older_rounds_;  // that nodes still have; they take part again when those have ended
  Quorum quorum_;
  CoolDown cool_down_;
  std::optional<TimePoint> deadline_;  // of the phase
  TimePoint gathering_ends_;
  std::optional<TimePoint> last_call_ends_;
  TimePoint ran_at_;                          // the last time
  std::optional<TimePoint> doubt_ends_;       // for so long a broken connection proves no end
  std::optional<TimePoint> no_round_before_;  // nodes of a round that is not known yet may be about to come
  bool is_wait_said_ = false;                 // once for each wait
  std::int64_t round_ = -1;                   // number of the current or last round
  RoundId round_id_;                          // of that one
  std::int64_t round_with_logs_ = -1;         // the highest that any node has logs of; the next one is above it
  int rounds_begun_ = 0;
  RestartBudget budget_;
  CrashLoop crash_loop_;
  RunBook book_;
  int world_size_ = 0;
  // Of a round that another membership began:
  bool is_adopted_ = false, was_given_up_ = false;  // some of its nodes did not come
  RankSet awaited_;                                 // group ranks
  std::optional<TimePoint> restate_ends_;           // of the wait for claims, and then for the nodes of the round
  Claims claims_;                                   // until one is adopted
  std::vector<std::string> nonces_;                 // of the last rounds here, the newest first
  TimePoint next_claim_said_{};                     // that did not count
  int claims_unsaid_ = 0;
  // Of the current round:
  std::vector<FailureReport> failures_;
  int stopped_ = 0;
  bool tree_survived_ = false;
  std::string lost_node_;   // why a member left; empty if none did
  std::string lost_place_;  // of that member
  std::string growth_;      // who has come, where the round was stopped for them
  TimePoint round_began_;
  std::chrono::milliseconds lost_at_{0}, growth_stopped_{0};  // job time of these
  TimePoint end_happened_{};                                  // what ends the round; known a little later
  Progress kept_;                                             // by its workers, as far as their nodes have told
  int stopped_at_step_ = 0, nodes_stepped_ = 0, nodes_in_round_ = 0;
  bool is_step_wanted_ = false;                // to stop at; nodes were asked whether they take part
  bool are_calls_wanted_ = false;              // and then for the first step that they can stop at
  std::optional<std::uint64_t> agreed_call_;   // of should_stop(), at which all workers stop
  std::set<std::uint64_t> calls_told_before_;  // to nodes of an adopted round; more than one only if a node lies
  std::optional<TimePoint> agreement_ends_;    // then the signal stops them
  bool has_member_left_ = false;
  std::set<int> hung_ranks_;
  StopRound stop_;         // as its nodes were told last
  std::string reason_;     // one line on why the last round ended, for the next one
  std::string ended_why_;  // of that, what ended the last round that began
  // Of the job:
  int stop_signal_ = 0;
  bool is_warned_ = false;
  std::string stop_why_;
  std::string died_of_it_why_;  // set where its workers' deaths have told of the stop, and no ddprun
  NodeId stop_asker_{};         // knows why
  std::optional<std::chrono::milliseconds> stopped_by_signal_at_;  // a round that works; job time
  std::optional<std::chrono::milliseconds> signalled_at_;          // since when a signal has ended workers; job time
  std::optional<FinishJob> verdict_;
  Actions out_;
};

// Of several failures, the one that the others follow from: the earliest on the job's clock; but one that was killed
// from outside (SIGKILL, a fault of memory) goes before one that ended by itself up to 250 ms earlier, because clocks
// of nodes and reports of deaths from loaded machines are no more exact than that; after SIGKILL up to 2 s, unless the
// other one says why it failed. Requires at least one; returns its index.
std::size_t first_cause(const std::vector<FailureReport>& failures);

// ddprun's own exit codes: docs/exit_codes.md.
constexpr int kStoppedAtStep = 75, kNoProgress = 76, kRendezvousFailed = 77;

// Whether it is so of any node. Looks first at the one that it was found of the last time: ten thousand answers are not
// to be ten thousand walks over all nodes.
template <class Predicate>
bool Membership::is_any(NodeId& begin, Predicate is_it) const {
  const auto holds = [&](const auto& entry) { return is_it(entry.second); };
  auto found = std::find_if(nodes_.lower_bound(begin), nodes_.end(), holds);
  if (found == nodes_.end()) found = std::find_if(nodes_.begin(), nodes_.end(), holds);
  if (found == nodes_.end()) return false;
  begin = found->first;
  return true;
}

}  // namespace ddp::rendezvous
