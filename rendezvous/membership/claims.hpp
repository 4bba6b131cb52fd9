// Which round a membership that knows none takes over, of those that nodes claim to have.
//
// A claim by itself proves nothing: whoever can join can make one up. Only the members of a round know its nonce, and
// each claim returns those of the node's last rounds. So nodes that share a nonce were members together: they belong to
// one set. The largest set is believed, of equal ones the one with the newer round; the node of this very process is
// believed before all others. The round is the newest one of the set that had begun on all of its nodes, or whose
// greater part claims it.
//
// A round that an older membership began has no nonce. Nodes that claim such a round by the same id are one set, which
// is believed only where there is no set with nonces, and no sooner than a lone node.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/membership/messages.hpp"
#include "rendezvous/membership/options.hpp"

namespace ddp::rendezvous {

class Claims {
 public:
  // endpoint_address: MembershipOptions::endpoint_address. Whoever had the endpoint there in a claimed round has ended.
  // lost: of its round nodes are known that have ended.
  Claims(std::string endpoint_address, LostHost lost)
      : endpoint_address_(std::move(endpoint_address)), lost_(std::move(lost)) {}

  struct Choice {
    Held claim;                       // of some node that has the round
    std::map<int, std::string> gone;  // group ranks and node keys of its claimants that have ended for certain
    bool is_lone = false;             // one node's, or without nonces, and not of this process: nobody bears it out
    bool is_greater_part = false;     // the round's claimants are, of its members whose end is not proven
    bool is_whole = false;            // no other member can come
  };

  // A node makes one claim at a time. is_own: the node of this process.
  void add(const std::string& node_key, const Held& claim, bool is_own);
  void withdraw(const std::string& node_key);
  // The node has left. What it claimed is still believed where no other claim is left.
  void leave(const std::string& node_key, bool is_end_proven);
  // A node that has not come here has ended. Those beyond kEndsKnownMax are forgotten: nothing is proven by them.
  void note_end(const EndedNode& ended);

  void forget();  // all claims

  // Empty where there is no claim. Nobody waits for the member with the group rank `lost`.
  std::optional<Choice> choice(std::optional<int> lost) const;

 private:
  using RoundKey = std::pair<RoundId, std::string>;  // with its nonce
  struct ClaimedRound {
    Held claim;
    int claimants = 0;
    std::map<int, int> ranks;  // that this round has -> claimants
    std::map<int, std::string> gone;
  };
  struct ClaimSet {
    std::size_t claimants = 0;
    bool has_own = false;
    bool has_nonces = true;                   // else what stands for them is the id of the round
    std::map<RoundKey, ClaimedRound> rounds;  // that somebody claims
    std::vector<std::string> nonces;
  };
  struct Claim {
    RoundKey round;
    int group_rank = 0;
    bool is_own = false;
  };

  std::size_t join_sets(const std::vector<std::string>& nonces);
  static std::size_t missing(const ClaimedRound& round);
  static bool is_greater_part(const ClaimedRound& round);
  static const ClaimedRound& round_of(const ClaimSet& set);

  void note_ended(ClaimedRound& round, const Held& claim) const;
  static void note_end(const EndedNode& ended, const RoundKey& key, ClaimedRound& round);

  std::string endpoint_address_;
  LostHost lost_;
  std::vector<EndedNode> ended_;
  std::map<std::string, Claim> claims_;  // by node key
  std::map<std::size_t, ClaimSet> sets_;
  std::map<std::string, std::size_t> set_of_;  // by nonce
  std::size_t sets_made_ = 0;
  std::optional<std::pair<RoundKey, ClaimedRound>> left_;  // the newest that a set's last claimant has left with
};

}  // namespace ddp::rendezvous
