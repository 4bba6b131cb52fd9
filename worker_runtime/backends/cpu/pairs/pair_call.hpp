// Sends and receives of one rank: what a message says of its call, which calls are under way, and how a run of them
// ends.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "worker_runtime/backends/cpu/arrivals/control_block.hpp"
#include "worker_runtime/core/failure/fingerprint.hpp"

namespace ddp::cpu_backend {

using process_group::Collective;
using process_group::CollectiveKind;

inline bool is_pair_call(CollectiveKind kind) {
  return kind == CollectiveKind::send || kind == CollectiveKind::receive;
}

// A receive from any rank: it takes the first message that comes. It is the only call of its run().
inline bool is_from_any(const Collective& call) { return call.source != nullptr; }
constexpr int kAnyPeer = -1;

// The tag of messages that belong to a collective. Tags of a program are 0 or more.
constexpr int kInnerTag = -1;

// The form in which a message carries its call. The root is the tag, because both ranks know the peer.
inline core::FingerprintWords words_of(Fingerprint call, int tag) {
  call.root = tag;
  return core::encode(call);
}
inline int tag_of(const Fingerprint& message) { return message.root; }

// Whether a send and a receive with the same tag have the same type and count.
inline bool fit(const Fingerprint& sent, const Fingerprint& wanted) {
  return sent.type == wanted.type && sent.count == wanted.count;
}

// The first message of a receive from any that waits on two threads: one half for ranks of this host, the other half
// for ranks of other hosts. The half that takes the message ends both.
class FirstMessage {
 public:
  // `wake` makes the other half ask is_taken() again.
  explicit FirstMessage(std::function<void()> wake) : wake_(std::move(wake)) {}

  bool is_taken() const { return is_taken_.load(); }
  // Called by a half that has found a message. Returns false if the other half was first; the message then stays with
  // its sender.
  bool take() {
    if (is_taken_.exchange(true)) return false;
    wake_();
    return true;
  }

 private:
  std::function<void()> wake_;
  std::atomic<bool> is_taken_{false};
};

struct PairEnd {
  enum class Kind : std::uint8_t { complete, lost, mismatch, timed_out, interrupted };
  Kind kind = Kind::complete;
  std::size_t call = 0;                // the index of the call that did not complete; the other fields are about it
  std::uint64_t number = 0;            // of the message, counted from 1 for each sender and receiver
  bool has_met = false;                // whether the peer is known to have made its call
  Fingerprint theirs{};                // of a mismatch: the call of the peer; the root is the tag
  int peer = kAnyPeer;                 // of a receive from any: the sender of the message, or the lost peer
  Presence presence = Presence::here;  // of a lost peer on another host: what its farewell says
  std::vector<std::size_t> awaited{};  // after a timeout or an interruption: see PairOrder::awaited()
};

// Which calls of a run are active: for each peer one send and one receive at a time, in the order of the calls.
class PairOrder {
 public:
  // `peers` are below `size`. kAnyPeer stands for the only call.
  void begin(std::span<const Collective> calls, std::span<const int> peers, int size) {
    next_.assign(calls.size(), kNone);
    last_.assign(2 * static_cast<std::size_t>(size), kNone);
    active_.clear();
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (peers[i] == kAnyPeer) {
        active_.push_back(i);
        continue;
      }
      const std::size_t direction = calls[i].kind == CollectiveKind::send ? 0 : 1;
      std::size_t& last = last_[2 * static_cast<std::size_t>(peers[i]) + direction];
      (last == kNone ? active_.emplace_back() : next_[last]) = i;
      last = i;
    }
  }

  const std::vector<std::size_t>& active() const { return active_; }

  // The active calls that the peer has not met; if there is none, all active calls.
  template <class HasMet>
  std::vector<std::size_t> awaited(const HasMet& has_met) const {
    std::vector<std::size_t> calls;
    std::copy_if(active_.begin(), active_.end(), std::back_inserter(calls), [&](std::size_t i) { return !has_met(i); });
    return calls.empty() ? active_ : calls;
  }

  // Moves the first wanted call behind active()[at] before that one, so that it is active. Returns false if there is
  // none.
  template <class IsWanted>
  bool prefer(std::size_t at, const IsWanted& is_wanted) {
    const std::size_t first = active_[at];
    for (std::size_t before = first; next_[before] != kNone; before = next_[before]) {
      const std::size_t wanted = next_[before];
      if (!is_wanted(wanted)) continue;
      next_[before] = next_[wanted];
      next_[wanted] = first;
      active_[at] = wanted;
      return true;
    }
    return false;
  }

  // active()[at] is complete. The next call of its peer and direction, if there is one, becomes active.
  void complete(std::size_t at) {
    const std::size_t next = next_[active_[at]];
    if (next != kNone) {
      active_[at] = next;
    } else {
      active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};

  std::vector<std::size_t> next_, last_, active_;  // they keep their memory, so that a run does not allocate
};

}  // namespace ddp::cpu_backend
