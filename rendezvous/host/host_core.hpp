// Decides, for a process that serves the membership of a job, which connections are taken in, who is told what, and
// whose connection ends: for the endpoint in an agent and in the daemon alike.
//
// Pure: events and the time go in, actions come out. No socket, no clock. The membership server performs the actions
// (rendezvous/control/membership_server.hpp); the simulation drives the same class in a virtual world. What the job's
// nodes are to do is decided by the membership inside (rendezvous/membership/membership.hpp).
//
// Threads: one caller at a time (the event loop's thread).
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/membership/membership.hpp"

namespace ddp::rendezvous {

class HostCore {
 public:
  // Events, and membership's Heard. A connection has the id that new_node() gave it.
  struct Came {  // a connection whose agent has said hello
    NodeId node;
    Hello hello;
    std::string address;  // that it comes from
  };
  struct Ended {  // the connection; also one that this class closed
    NodeId node;
    std::optional<std::string> why{};  // empty: this class closed it
    bool by_peer = false;              // in order, or by its kernel; else it fell silent, or spoke nonsense
  };
  struct OwnAgentSaid {  // that of this process
    ToMembership message;
  };
  struct GuardianSaid {  // that nothing of the job is left on its node
    std::string node_key;
    int signal_number = 0;  // that killed its ddprun; 0: not known
  };
  struct CallAnswered {  // the call of this process's agent, by who serves the job there
    StopRound message;
    Elsewhere from;
  };
  struct OwnAgentFinished {};  // it wants nothing more
  using Event = std::variant<Came, Heard, Ended, OwnAgentSaid, GuardianSaid, CallAnswered, OwnAgentFinished>;

  // Actions.
  struct Tell {
    NodeId node;
    ToAgent message;
  };
  struct TellOwnAgent {
    ToAgent message;
  };
  struct Close {  // the connection, once all that it was told has gone; Ended is the answer
    NodeId node;
  };
  struct Drop {  // the connection, at once
    NodeId node;
  };
  struct Print {
    std::string line;
    std::optional<NodeId> node{};  // that was refused, of which the line says so
  };
  struct StepDown {  // this membership may not go on: tell the own agent. It hears and says nothing more.
    std::string why;
    std::optional<Elsewhere> other_host{};  // who serves the job instead, where that is known
    bool is_round_given_up = false;         // for that of the other host
    RoundId last_begun{};                   // here, or taken over
  };
  struct Finish {};  // everybody has heard how the job ended, or has had the time to
  using Action = std::variant<Tell, TellOwnAgent, Close, Drop, Print, StepDown, Finish>;
  using Actions = std::vector<Action>;

  // has_own_agent: an agent of the job is in this process, and is told where this membership may not go on; else the
  // job ends for all nodes then.
  // Nodes that speak none of `versions` are refused.
  HostCore(MembershipOptions options, bool has_own_agent, TimePoint now, const VersionRange& versions = kVersions);

  NodeId new_node() { return NodeId{++nodes_seen_}; }

  [[nodiscard]] Actions step(Event event, TimePoint now);

  // Does what has fallen due; calling early or twice is harmless.
  [[nodiscard]] Actions tick(TimePoint now);

  // When tick() next has work; empty while only an event can change anything.
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  // On the job's clock.
  std::chrono::milliseconds job_time(TimePoint now) const;

  // The guardian with this node key speaks of a node of this job.
  bool knows(const std::string& node_key) const { return !has_stepped_down_ && membership_.knows(node_key); }

  const Membership& membership() const { return membership_; }

  // How the job has ended for its nodes here, if it has.
  const std::optional<FinishJob>& verdict() const { return verdict_ ? verdict_ : membership_.verdict(); }

  // It has had a round and no verdict, and none of its nodes is left.
  bool is_deserted() const { return membership_.has_begun() && membership_.is_empty() && !membership_.is_finished(); }
  // Nobody is connected, and nobody takes part any more or may come again: there is nothing left of the job.
  bool is_over() const { return connections_.empty() && (membership_.is_finished() || membership_.is_abandoned()); }

 private:
  struct Connection {
    bool is_leaving = false;  // it has been told the last thing
  };

  void take(Came&& event, TimePoint now);
  void take(Heard&& event, TimePoint now);
  void take(Ended&& event, TimePoint now);
  void take(OwnAgentSaid&& event, TimePoint now);
  void take(GuardianSaid&& event, TimePoint now);
  void take(CallAnswered&& event, TimePoint now);
  void take(OwnAgentFinished&& event, TimePoint now);

  // refused: the node whose refusal the lines of these actions are about.
  void follow(Membership::Actions actions, std::optional<NodeId> refused = {});
  void tell(NodeId node, ToAgent message);
  void close(NodeId node);
  void refuse(NodeId node);
  void forget(NodeId node);
  void drop(NodeId node);
  void drop_all();
  void step_down(StepDown how);
  void take_call(const Came& event);

  const bool has_own_agent_;
  const VersionRange versions_;
  const TimePoint began_;
  Membership membership_;
  std::uint64_t nodes_seen_ = 0;
  std::optional<std::string> own_key_;  // of this process's own node
  std::optional<FinishJob> verdict_;    // where membership may not go on, and no agent is here to take another way
  std::map<NodeId, Connection> connections_;  // of other nodes
  std::set<NodeId> refused_;                  // of them, the oldest first
  std::optional<TimePoint> farewell_ends_;    // while the last connections are waited for
  bool is_finishing_ = false, has_stepped_down_ = false;
  Actions out_;
};

}  // namespace ddp::rendezvous
