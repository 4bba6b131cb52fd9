// How a membership that begins anew takes over the round that nodes bring to it.
//
// Nodes claim rounds. Once it is clear which one most of them bear out (claims.hpp), that round is adopted, and its
// other members are awaited until they have come or are given up. Until then, and after some were given up, the round
// is in doubt: another membership may have gone on with it. A round that this membership begins itself ends the doubt.
//
// It also keeps the nonces of the last rounds, by which nodes prove that they were members.
//
// Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/membership/claims.hpp"
#include "rendezvous/membership/rank_set.hpp"

namespace ddp::rendezvous {

// Who calls at the endpoint tells one half of its nonces, and who answers the other half of one of them: so each proves
// that it knows the nonce, and neither learns it. Zeros stand for the other half.
std::string call_proof(const std::string& nonce);
std::string answer_proof(const std::string& nonce);
bool is_answer_proof(const std::string& proof, const std::vector<std::string>& nonces);  // of one of them

class Recovery {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Decision {
    std::optional<Claims::Choice> choice;  // empty: no claim is left
  };

  // lost: whose end or silence made this membership begin. Nobody waits for that node.
  // endpoint_address: where whoever had the endpoint before has ended.
  Recovery(std::chrono::milliseconds timeout, LostHost lost, std::string endpoint_address)
      : timeout_(timeout), lost_group_rank_(lost.group_rank), claims_(std::move(endpoint_address), std::move(lost)) {}

  // --- claims, until one is adopted

  bool are_claims_open() const { return deadline_ && !is_adopted_; }
  void claim(const std::string& node_key, const Held& held, bool is_own, TimePoint now);
  void withdraw(const std::string& node_key) { claims_.withdraw(node_key); }
  void leave(const std::string& node_key, bool is_end_proven) { claims_.leave(node_key, is_end_proven); }
  void note_end(const EndedNode& ended) { claims_.note_end(ended); }
  // At once where the greater part of a round's members claim it, or all that can, and two of them bear each other out.
  // A single node may be a liar: it is believed where nobody else has come meanwhile. Empty while it is not decided.
  std::optional<Decision> decision(TimePoint now) const;
  void close_claims();

  // --- the adopted round

  // began_here: in this process, which had forgotten it, so that no other membership can have gone on with it.
  void adopt(const Held& held, bool began_here, TimePoint now);
  bool is_adopted() const { return is_adopted_; }
  bool awaits(int group_rank) const { return awaited_.has(group_rank); }
  bool awaits_anyone() const { return !awaited_.empty(); }
  // The member has come, or is not expected any more. Returns whether it was awaited.
  bool settle(int group_rank) { return awaited_.erase(group_rank); }
  // True once: all have come, or are not expected any more.
  bool is_over_now();
  // Nobody waits any longer. Returns the text for the group ranks that have not come: "nodes 1, 2".
  std::string give_up();
  bool is_in_doubt() const { return is_adopted_ && !began_here_ && (was_given_up_ || awaits_anyone()); }

  // --- both

  std::chrono::milliseconds timeout() const { return timeout_; }
  std::optional<TimePoint> deadline() const;  // of the wait for claims, and then for members
  bool is_due(TimePoint now) const { return deadline_ && now >= *deadline_; }
  void stop_waiting() { deadline_.reset(); }
  void reset_wait();       // for claims and members
  void begin_own_round();  // on this membership's own account

  // --- nonces

  void add_nonce(std::string nonce);
  const std::string& nonce() const { return nonces_.front(); }  // of the last round; requires that there is one
  // The first one is that of the last round; both are none where an older membership gave it none.
  bool proves_last_round(const std::vector<std::string>& of_node) const;
  bool proves_any_round(const Held& held) const;
  // The same of a call, which has call_proof() in place of each nonce. Returns the nonce here.
  std::optional<std::string> nonce_of_call(const Held& held) const;
  const std::vector<std::string>& nonces() const { return nonces_; }

  // What the user is told of a claim that does not count: once a minute at most, because whoever lies may do so often.
  // place: of the node, "host a (10.0.0.1)". Empty if this claim is not told.
  std::optional<std::string> tell_claim(const std::string& place, std::uint32_t round, TimePoint now);

 private:
  TimePoint decided_at(const Claims::Choice& choice) const;

  std::chrono::milliseconds timeout_;
  std::optional<int> lost_group_rank_;
  Claims claims_;
  std::optional<TimePoint> deadline_;
  bool is_adopted_ = false, was_given_up_ = false, began_here_ = false;
  RankSet awaited_;
  std::vector<std::string> nonces_;  // of the last rounds, the newest first
  TimePoint next_claim_told_{};
  int claims_untold_ = 0;
};

}  // namespace ddp::rendezvous
