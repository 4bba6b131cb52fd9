// What membership knows of one round, and what it knows of each node's part in that round. A round begins by assignment
// of a new value, so nothing of the round before it is left.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ddp/round.hpp"
#include "rendezvous/membership/messages.hpp"
#include "rendezvous/membership/stop_agreement.hpp"

namespace ddp::rendezvous {

// Of a node that is a member of the round.
struct MemberPart {
  bool has_ended = false;            // no process of the round is there, not yet or no longer
  bool has_stepped = false;          // every worker there has finished a step of the round
  std::optional<StartRound> told{};  // empty where another membership began the round
  std::vector<int> unreached{};      // these two as RoundEnded has them
  bool were_in_call = false;
};

// Why the round goes on without a node.
struct Loss {
  std::string what;
  std::chrono::milliseconds at{0};     // job time
  std::optional<std::string> place{};  // of the node that was lost, if it is known: place_of() in round_end.hpp
  // Of a broken link between nodes that are both here: whether enough others are here to leave one of the two out.
  enum class Link { none, leaves_one_out, ends_round } link = Link::none;
  std::optional<int> exit_code{};  // of the lost node's ddprun, as it said itself; the job's, if it ends for this loss
  bool is_of_endpoint_host = false;  // the node that had the endpoint; its guardian may say later how it ended
};

// The round is stopped to take in more nodes, or because some leave.
struct MemberChange {
  std::string who;
  std::chrono::milliseconds at{0};  // job time
  bool is_decided = false;          // another round is to follow, however the workers end
};

struct CurrentRound {
  std::optional<RoundId> id{};                          // empty before the first round
  int nodes = 0;                                        // that it began with
  int nodes_stepped = 0;                                // of these, all of whose workers have finished a step
  std::optional<std::chrono::milliseconds> began_at{};  // job time; empty if another membership began it, or nobody yet

  std::vector<FailureReport> failures{};
  int stopped = 0;          // workers
  int stopped_at_step = 0;  // workers
  bool tree_survived = false;
  bool has_member_left = false;
  bool is_for_others = false;  // each worker that has failed did for other ranks, as far as is known
  std::set<int> hung_ranks{};
  Progress kept{};  // by its workers, as far as their nodes have told
  std::optional<Loss> loss{};
  std::optional<MemberChange> change{};
  std::chrono::steady_clock::time_point end_happened{};  // what ends the round; known a little later
  StopRound stop{};                                      // as its nodes were told last
  StopAgreement agreement{};

  void note_end(const RoundEnded& message);       // of one node; its failures come one by one
  bool takes_failures() const;                    // as long as they are not too many
  bool note_hung(const std::vector<int>& ranks);  // returns whether one of them is new
  // Of several losses the last one counts, with the place of the last node whose place is known.
  void lose(std::string what, std::chrono::milliseconds at);

  std::int64_t number() const { return id ? std::int64_t{id->number} : -1; }
};

}  // namespace ddp::rendezvous
