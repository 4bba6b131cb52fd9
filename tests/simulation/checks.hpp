// What must hold at every moment of a history, whatever happens: the design's safety, seen from outside of all
// processes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "ddp/round.hpp"
#include "rendezvous/membership/messages.hpp"

namespace ddp::simulation {

class Node;

struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Checks {
 public:
  // teller: which membership sends this to that node.
  void is_told(const void* teller, const Node& node, const rendezvous::ToAgent& message);

  // The node starts its workers for this round, or gives them their seats; and it has ended them all.
  void begins(const Node& node, const rendezvous::StartRound& start);
  void spawns(const Node& node);
  // The store of this round is opened on that host; the node's workers are told of an address that leads to that one.
  void opens_store(const RoundId& round, int host) { rounds_[round].store_host = host; }
  void is_led_to(const Node& node, const RoundId& round, int host) const;

  // A membership counted this node as gone, and takes it in again.
  void comes_back(const Node& node) {
    returned_.insert(&node);
    members_change();
  }
  // A worker failed by itself.
  void fails(const RoundId& round) { rounds_[round].has_failed = true; }
  // A worker of the round is told at which call of should_stop() to stop; it has promised to wait in that one.
  void stops_at(const RoundId& round, std::uint64_t call, std::optional<std::uint64_t> promised);
  // A worker of the round has ended with 0.
  void ends_well(const RoundId& round) { ++rounds_[round].ended_well; }
  void window_is_set() { is_window_set_ = true; }  // in which restarts count
  // Each worker runs in run_elastic, as those of one program do: no node takes longer to end them than others do.
  void all_are_elastic() { are_all_elastic_ = true; }
  // Nodes that live, and do not run or have no connection to this membership.
  std::function<std::set<const Node*>(const void* teller)> away_from;
  bool may_two_go_on() const { return has_begun_once_more_; }
  // Another ddprun has come at the endpoint. Where it hears of no survivor, that can't be told from a first start: it
  // may begin the job once more. The two find each other later, and with a token the one that came last gives way.
  void endpoint_is_replaced() { is_endpoint_replaced_ = true; }
  // The greater part of an older round is together and goes on. What a node says of this newer one does not count, as
  // it can't be told from a lie: neither its restarts nor what its workers have done.
  void is_disowned(const RoundId& round) { disowned_.insert(round); }
  bool was_disowned(const RoundId& round) const { return disowned_.count(round) != 0; }
  // A node has come or gone, or may seem to. What lasts for a while, as a cut, counts at its beginning and its end.
  void members_change() { ++changes_of_members_; }
  int changes_of_members() const { return changes_of_members_; }

  // Some worker has come or gone, or what can reach what has changed: a collective of each round whose members all
  // work, and reach each other, completes now. may_be_unheard: whether one of an older round may go on by itself, as it
  // does not know better. is_unknown: the daemon was started after the round, and nobody has told it of that.
  void collectives_complete(const std::vector<Node*>& nodes, const std::function<bool(int, int)>& is_open,
                            const std::function<bool(Node&)>& may_be_unheard,
                            const std::function<bool(const RoundId&)>& is_unknown);

  // Of the nodes that were told of this round; and how many it has.
  bool is_member(const RoundId& round, const Node& node) const;
  int size_of(const RoundId& round) const;
  std::size_t rounds_completed() const { return rounds_completed_; }
  std::size_t rounds_told() const { return rounds_.size(); }
  const RoundId& newest_complete() const { return newest_complete_; }
  bool is_complete(const RoundId& round) const { return complete_now_.count(round) != 0; }

 private:
  struct Round {
    int group_world_size = 0, world_size = 0, restart_count = 0, restarts_max = 0;
    std::map<int, const Node*> members;  // by group rank
    std::map<int, int> ranks;            // rank_first -> workers
    bool has_failed = false, was_complete = false;
    std::optional<std::uint64_t> stop_call;
    std::optional<int> store_host;
    int ended_well = 0;
    int changes_of_members = 0;  // before it
    std::set<const Node*> away;  // when it began
  };

  void begins_to_be_told(const void* teller, const Node& node, const rendezvous::StartRound& start);
  void check_that_all_ended_well(const RoundId& id) const;
  void check_whole(const RoundId& id, const Round& round);
  void check_that_work_is_kept(const RoundId& id, const std::vector<Node*>& alive,
                               const std::function<bool(Node&)>& may_be_unheard) const;

  std::map<RoundId, Round> rounds_;
  std::map<const Node*, RoundId> begun_;
  std::set<const Node*> returned_;  // since the last round that they were told
  std::map<const void*, rendezvous::FinishJob> verdicts_;
  std::map<const void*, RoundId> last_told_;  // by each membership
  RoundId newest_complete_{};
  std::set<RoundId> complete_now_, disowned_;
  std::size_t rounds_completed_ = 0;
  int changes_of_members_ = 0;
  bool is_endpoint_replaced_ = false, has_begun_once_more_ = false, is_window_set_ = false, are_all_elastic_ = false;
};

}  // namespace ddp::simulation
