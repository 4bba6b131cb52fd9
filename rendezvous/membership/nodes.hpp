// The nodes of a job: members of the current round and spares, nodes whose connection broke, and nodes that still have
// an older round.
//
// Keeps what makes most questions cheap, so that few events walk over all of ten thousand nodes.
//
// Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/membership/current_round.hpp"
#include "rendezvous/membership/held_back.hpp"
#include "rendezvous/membership/messages.hpp"
#include "rendezvous/membership/node_id.hpp"
#include "rendezvous/membership/stop_requests.hpp"

namespace ddp::rendezvous {

struct Node {
  using TimePoint = std::chrono::steady_clock::time_point;

  Hello hello;
  std::string seen_address;
  bool is_endpoint_host = false;
  std::optional<int> group_rank{};   // in this round, or in the last one it took part in
  std::optional<MemberPart> part{};  // in the current round, of a member; set by Nodes
  std::int64_t first_round = -1;     // that began with it
  NodeStop stop{};
  std::vector<Elsewhere> links_to_check{};  // it is left out until they work
  // It has the work of a round before this one: certainly a member of it, and nobody had told it before to end it.
  bool has_older_work = false;
  // The last round in which its workers kept something (Progress), as it said; -1: none.
  std::int64_t kept_in = -1;
  bool is_claimant = false;  // of a round, while it is not decided which one is adopted
  HeldBack said{};           // meanwhile

  bool is_member() const { return part.has_value(); }
  bool runs() const { return part && !part->has_ended; }  // processes of the current round
};

class Nodes {
 public:
  using TimePoint = Node::TimePoint;
  struct Absence {  // of a node whose connection broke
    TimePoint until{};
    std::string why;
  };

  // --- all of them, in the order of their ids

  auto begin() { return nodes_.begin(); }
  auto end() { return nodes_.end(); }
  auto begin() const { return nodes_.begin(); }
  auto end() const { return nodes_.end(); }
  std::size_t size() const { return nodes_.size(); }
  bool empty() const { return nodes_.empty(); }
  bool has(NodeId id) const { return nodes_.count(id) != 0; }
  Node& at(NodeId id) { return nodes_.at(id); }
  const Node& at(NodeId id) const { return nodes_.at(id); }
  std::optional<NodeId> find(const std::string& node_key) const;
  bool may_be_wished(int node_rank) const { return wished_ranks_.count(node_rank) != 0; }  // else by no node

  const Node& add(NodeId id, Node node);
  Node remove(NodeId id);  // returns what was known of it
  // The node has come again on another connection.
  void rename(NodeId before, NodeId id);

  // --- members of the current round

  void make_member(NodeId id, int group_rank, MemberPart part);
  void end_membership(Node& node);
  void forget_round();  // nobody is a member, or has a group rank
  std::size_t member_count() const { return member_count_; }
  bool has_spares() const { return nodes_.size() != member_count_; }  // or, between rounds, nodes without one
  std::vector<NodeId> members() const;                                // in the order of group ranks
  bool is_member_absent() const;
  bool is_anyone_running();
  std::vector<int> running_group_ranks() const;  // in the order of ids
  std::chrono::milliseconds longest_grace() const;

  // --- nodes whose connection broke

  void begin_absence(NodeId id, Absence absence);
  bool end_absence(NodeId id);  // returns whether there was one
  void forget_absences();
  bool is_absent(NodeId id) const { return absences_.count(id) != 0; }
  const Absence* absence_of(NodeId id) const;
  std::size_t absent_count() const { return absences_.size(); }
  std::vector<NodeId> gone(TimePoint now) const;  // whose absence is over, in the order of their ids
  std::optional<TimePoint> next_gone() const;

  // --- nodes that still have an older round; they take part again when that has ended

  void set_older_round(NodeId id, std::uint32_t number) { older_rounds_[id] = number; }
  void end_older_round(NodeId id) { older_rounds_.erase(id); }
  std::optional<std::uint32_t> older_round(NodeId id) const;
  bool has_older_rounds() const { return !older_rounds_.empty(); }
  bool is_older_work_awaited() const;

  // --- nodes that leave the job, when the round is over

  void begin_leaving(NodeId id) { leaving_.insert(id); }
  void end_leaving(NodeId id) { leaving_.erase(id); }  // it stays
  bool is_leaving(NodeId id) const { return leaving_.count(id) != 0; }
  const std::set<NodeId>& leaving() const { return leaving_; }

  // --- nodes that can take part in the next round

  // The available nodes that have the newest work (Node::kept_in): it may be in their memory and on their disks alone.
  // Empty if none has said that it kept something.
  std::set<NodeId> holders_of_newest_work() const;

  // Not nodes that leave or have processes of an older round, and not newcomers whose connection broke.
  bool is_available(NodeId id, const Node& node) const {
    return older_rounds_.count(id) == 0 && !is_leaving(id) && (node.is_member() || absences_.count(id) == 0);
  }
  int count_available() const;

 private:
  std::map<NodeId, Node> nodes_;
  std::map<std::string, NodeId> by_key_;
  std::set<int> wished_ranks_;
  std::size_t member_count_ = 0;
  NodeId found_running_{};  // where the search for such a node begins
  std::map<NodeId, Absence> absences_;
  std::set<std::pair<TimePoint, NodeId>> absence_ends_;
  std::map<NodeId, std::uint32_t> older_rounds_;
  std::set<NodeId> leaving_;
};

}  // namespace ddp::rendezvous
