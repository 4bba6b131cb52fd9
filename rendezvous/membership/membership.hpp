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
// If the job is told to stop, all its workers stop at one step if they can (stop_agreement.hpp). If a node can't, or
// does not answer at once, the signal stops all of them. A warning begins the same, but waits, and stops nobody by a
// signal. Where enough others are left, a node that is told to stop, or warned, may leave instead: the round ends as
// for a stop or warning, but the next one begins without that node. If the host itself leaves, it says so to the
// others, and the next host goes on.
//
// Membership is soft state. A node whose connection broke comes again with its key and is told again what it has not
// answered. Where membership begins anew, after its own process was lost, nodes come that still have a round. What they
// claim and say has no effect before it is clear which round most of them bear out (claims.hpp). That round is adopted;
// its other nodes are awaited, and until they have come or been given up no round follows. Once there is a round and
// its greater part is here, whoever claims another one is refused, or ends what it has.
//
// It coordinates its parts, each of which is tested by itself: the nodes (nodes.hpp) and who is let in (admission.hpp);
// the wait for nodes between two rounds (gathering.hpp) and nodes that come while one runs (newcomers.hpp); the current
// round (current_round.hpp), its beginning and its end (round_start.hpp, round_end.hpp); whether another round follows
// (restarts.hpp) or how the job ends (verdict.hpp); who tells the job to stop (stop_requests.hpp), and the agreement on
// a step to stop at (stop_agreement.hpp); the recovery of a round that another membership began (recovery.hpp); the
// greater part (quorum.hpp); an absence of this process (own_absence.hpp).
//
// Threads: one caller at a time (the event loop's thread).
// Protocol: docs/control_channel.md.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/membership/admission.hpp"
#include "rendezvous/membership/broken_links.hpp"
#include "rendezvous/membership/current_round.hpp"
#include "rendezvous/membership/gathering.hpp"
#include "rendezvous/membership/messages.hpp"
#include "rendezvous/membership/newcomers.hpp"
#include "rendezvous/membership/node_id.hpp"
#include "rendezvous/membership/nodes.hpp"
#include "rendezvous/membership/options.hpp"
#include "rendezvous/membership/own_absence.hpp"
#include "rendezvous/membership/quorum.hpp"
#include "rendezvous/membership/reasons.hpp"
#include "rendezvous/membership/recovery.hpp"
#include "rendezvous/membership/restarts.hpp"
#include "rendezvous/membership/round_end.hpp"
#include "rendezvous/membership/round_start.hpp"
#include "rendezvous/membership/run_report.hpp"
#include "rendezvous/membership/stop_requests.hpp"
#include "rendezvous/membership/verdict.hpp"

namespace ddp::rendezvous {

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
// The node is not here any more. Unless its end is proven it may still run, behind a broken network or elsewhere.
struct Left {
  NodeId node;
  std::string why;
  bool is_end_proven = false;
  std::optional<int> exit_code{};  // as Leaving has it
};
// The connection broke: the node may come again within the resume window, as a Joined with the same node key and
// another NodeId. Where it does not it has left. That does not prove its end: an agent that lives closes its connection
// too, where it misses heartbeats, and so does whatever lies between the hosts.
struct Disconnected {
  NodeId node;
  std::string why;
};
// The guardian of that node says that no process of the job is left there, and no ddprun.
struct NodeEnded {
  std::string node_key;
  int signal_number = 0;  // that killed ddprun; 0: not known
};
using MembershipEvent = std::variant<Joined, Heard, Left, Disconnected, NodeEnded>;

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
  bool is_ending() const { return is_finished() || job_stop(); }  // it takes in nobody for another round
  bool is_empty() const { return nodes_.empty(); }
  bool is_abandoned() const {  // so is a job that has begun no round, as soon as nobody is connected
    return nodes_.empty() || (!has_begun() && nodes_.size() == nodes_.absent_count());
  }
  bool has_begun() const { return round_.id.has_value(); }  // a round
  bool knows(const std::string& node_key) const;            // whose farewell is for this job
  std::optional<Refused> other_job(const Hello& hello) const { return admission().other_job(hello); }
  // Another node serves the job too. The nodes here join it where they have no round; and where they wait for others,
  // if it proves that it was in a round here and holds one that is not older. They give up a newer round's predecessor
  // if it has gone on; and, if the job has a token, the round of a job that they have begun once more, later than it.
  enum class Aside { no, joins, gives_up_round };
  Aside aside_for(const Hello& other) const;
  // A newer round than that of this host has begun here, and the host was in a round here: the job goes on here. Empty
  // if not.
  std::optional<StopRound> answer_to_call(const Hello& host) const;
  bool is_answer_proven(const StopRound& answer) const;  // to the call of this process's agent
  [[nodiscard]] Actions give_up_round();                 // tells the nodes
  bool is_full() const;  // a round of as many nodes as the job takes is under way: who comes now is a spare
  // Of the job, as far as this node can tell.
  int nodes_max_for(const Hello& hello) const { return admission().nodes_max_for(hello); }
  const std::optional<FinishJob>& verdict() const { return verdict_; }  // once it is finished, if it has one
  // That has begun here or was adopted, or is about to.
  RoundId last_round() const { return round_.id.value_or(RoundId{}); }
  RoundId last_begun() const { return last_begun_; }  // here, or adopted: nodes may have it
  int restart_count() const { return restarts_.count(); }
  std::optional<std::vector<SpentRestarts>> spent_restarts(TimePoint now) const { return restarts_.spent(now); }
  const std::optional<JobStop>& job_stop() const { return stops_.stop(); }
  std::string_view phase_name() const;            // waiting for nodes, starting, running, stopping, finished
  RoundId term() const { return options_.term; }  // of the rounds that it begins; its number is not used

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

  void take(Joined&& event, TimePoint now);
  void take(const Heard& event, TimePoint now);
  void take(const Left& event, TimePoint now);
  void take(const Disconnected& event, TimePoint now);
  void take(const NodeEnded& event, TimePoint now);
  void note_end(const EndedNode& ended, TimePoint now);
  void settle_end(int group_rank, const std::string& node_key, TimePoint now);
  void hear(NodeId from, const StoreOpened& message, TimePoint now);
  void hear(NodeId from, const RoundStarted& message, TimePoint now);
  void hear(NodeId from, const FirstStep& message, TimePoint now);
  void hear(NodeId from, const RoundFailed& message, TimePoint now);
  void hear(NodeId from, const RoundEnded& message, TimePoint now);
  void hear(NodeId from, const StopAsked& message, TimePoint now);
  void hear(NodeId from, const StopReady& message, TimePoint now);
  void hear(NodeId from, const LinksWork& message, TimePoint now);

  // Nodes (membership.cpp).
  bool is_own_call(const Hello& other) const;
  Admission admission() const { return {options_, nodes_, rounds_begun_ > 0}; }
  void go_on(TimePoint now);
  Node forget(NodeId id);
  void note_loss(std::string what, TimePoint happened, TimePoint now);
  void lose(const Node& node, const Left& event, TimePoint happened, TimePoint now);
  void begin_gathering(TimePoint now);
  void gather(TimePoint now);
  void end_gathering(TimePoint now);
  void call_newcomers(TimePoint now);
  void let_go_of_store_opener(TimePoint now);

  // Rounds (membership_rounds.cpp).
  std::vector<NodeId> fit_nodes(const CoolDown& cool_down, TimePoint now) const;
  void form_round(TimePoint now);
  void ask_for_store();
  void count_restarts_before(const std::vector<NodeId>& members, TimePoint now);
  void start_round(std::uint16_t store_port, TimePoint now);
  void stop_round(int signal_number, bool kill, const std::optional<std::string>& why, TimePoint now,
                  std::optional<NodeId> knows_already = {});
  void refuse_those_that_never_stop(TimePoint now);
  void end_round_if_all_have(TimePoint now);
  void find_broken_links(TimePoint now);
  std::vector<Elsewhere> other_ends(const std::vector<BrokenLink>& links, int group_rank,
                                    const std::map<int, NodeId>& members) const;
  void begin_next_round(TimePoint now);
  void enter_finished();
  void finish(FinishJob verdict, TimePoint now);
  static bool is_report_for(const Node& node);
  void send_verdict(NodeId to, bool with_report);
  void step_down(const std::string& why);
  std::string why_too_few() const;
  void take_end_of_older_round(NodeId from, const RoundEnded& message, TimePoint now);
  bool can_do_without(const Node& node, const RoundEnded& message) const;
  void leave_out(NodeId newcomer, const RoundEnded& message, TimePoint now);
  bool may_another_round_follow(TimePoint now);
  bool may_go_on() const;
  bool did_others_go_on() const;
  bool are_others_too_few() const;
  bool is_endpoint_here() const;
  bool were_all_members() const;
  // For others, where it may not go on: they come here first. Where membership is on no node of the job there is nobody
  // to step aside to.
  bool may_wait() const { return options_.holds_endpoint || !options_.greater_part_only; }
  bool must_step_down() const { return !may_go_on() && !may_wait() && !guardian_awaited_until_; }

  // ddprun is told to stop (membership_stop.cpp).
  void take_warning(NodeId from, const StopAsked& message, TimePoint now);
  void take_signalled(NodeId from, const RoundEnded& message, TimePoint now);
  void stop_spare(NodeId id, int signal_number, TimePoint now);
  void dismiss(NodeId id, int signal_number);
  void ask_for_a_step(TimePoint now);
  void follow(StopAgreement::Next next, TimePoint now);
  void forget_stop_at_step();
  bool may_leave(NodeId id) const;
  std::optional<NodeId> next_host() const;
  void let_leave(NodeId id, const JobStop& stop, TimePoint now);
  void leave_round_to_others(NodeId host, const JobStop& stop);
  void let_warned_leave(TimePoint now);
  void warn_in_leave(NodeId from, TimePoint now);
  void note_leave(const std::string& why, TimePoint now);
  bool can_leavers_go() const;
  void end_leave(TimePoint now);
  void hand_on_job(const HostLeaves& how);
  void tell_of_stop(NodeId id, const Node& node);
  void give_up_agreement(TimePoint now);

  // Nodes that come again, and rounds that another membership began (membership_resume.cpp).
  void come_again(NodeId before, const Joined& event, TimePoint now);
  void tell_again(NodeId id, Node& node);
  void take_in_with_round(NodeId id, const Held& held, TimePoint now);
  void claim(NodeId id, const Held& held, TimePoint now);
  void decide_claims(TimePoint now);
  void close_claims(TimePoint now);
  void take_settings_of(const Held& claim);
  void take_claim_of_another_round(NodeId id, const Held& held, TimePoint now);
  std::optional<int> lost_member_of(const RoundId& round) const;
  void adopt(const Held& held, TimePoint now);
  void note_end_of_lost_host();
  void explain_loss_of_host(int signal_number);
  void seat(NodeId id, const Held& held, TimePoint now);
  void end_older_round(NodeId id, std::uint32_t round, bool may_reseat);
  void give_up_awaited(TimePoint now);
  bool is_job_over(TimePoint now);
  void stop_awaiting_guardian(TimePoint now);
  void consider_losses(TimePoint now);

  // Who serves the job in an agent looks at the clock that often, so that it can tell.
  bool looks_at_clock() const {
    return options_.greater_part_only && options_.nodes_max > 1 && rounds_begun_ > 0 && !is_finished();
  }

  std::chrono::milliseconds job_time(TimePoint now) const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(now - began_);
  }
  // What a node says of a time, which may be anything.
  TimePoint at(std::chrono::milliseconds time, TimePoint now) const {
    return began_ + std::clamp(time, std::chrono::milliseconds(0), job_time(now));
  }
  void send(NodeId to, ToAgent message) { out_.emplace_back(Send{to, std::move(message)}); }
  void expect_sends_to_members() { out_.reserve(out_.size() + nodes_.member_count()); }
  void print(std::string text) { out_.emplace_back(Print{std::move(text)}); }

  MembershipOptions options_;
  const TimePoint began_;  // on the job's clock: 0
  Phase phase_ = Phase::gathering;
  Nodes nodes_;
  Quorum quorum_;
  std::optional<TimePoint> deadline_;  // of the phase
  Gathering gathering_;
  bool is_split_said_ = false;  // that too few nodes are here to go on
  Newcomers newcomers_;
  OwnAbsence own_absence_;
  CurrentRound round_;  // or the last one
  RoundId last_begun_{};
  std::int64_t round_with_logs_ = -1;  // the highest that any node has logs of; the next one is above it
  int rounds_begun_ = 0;
  Restarts restarts_;
  std::optional<std::string> told_why_;  // of the next round: printed here, with the pause before it
  RunBook book_;
  std::uint64_t job_started_ = 0;  // as StartRound tells it; 0 before the first round here
  int world_size_ = 0;             // of the round that began last
  Recovery recovery_;
  std::optional<TimePoint> guardian_awaited_until_;  // of the host that is lost: it may prove its end
  // The nodes of the round have met at the endpoint, and no host but this one can have it.
  bool is_endpoint_ours_;
  // Of the job:
  StopRequests stops_;
  std::optional<FinishJob> verdict_;
  Actions out_;
};

}  // namespace ddp::rendezvous
