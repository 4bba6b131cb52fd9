// Sends and receives of one rank: which are under way, and how they end.
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

// A receive from whichever rank sends first. It has a run() of its own.
inline bool is_from_any(const Collective& call) { return call.source != nullptr; }
constexpr int kAnyPeer = -1;

// Of messages that a collective is made of: none of a program's own, which are 0 and above.
constexpr int kInnerTag = -1;

// What a message says of itself: its call, with the tag in the place of the peer, which both sides know.
inline core::FingerprintWords words_of(Fingerprint call, int tag) {
  call.root = tag;
  return core::encode(call);
}
inline int tag_of(const Fingerprint& told) { return told.root; }

// Whether a send and a receive of the same tag are of the same data.
inline bool fit(const Fingerprint& sent, const Fingerprint& wanted) {
  return sent.type == wanted.type && sent.count == wanted.count;
}

// A receive from any that waits for ranks of this host and of others, at once, on two threads: the first message ends
// both.
class FirstMessage {
 public:
  // `wake` makes the other side look again.
  explicit FirstMessage(std::function<void()> wake) : wake_(std::move(wake)) {}

  bool is_taken() const { return is_taken_.load(); }
  // Of who has found one: false where the other side was first, and the message stays where it is.
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
  std::size_t call = 0;                // which of the calls did not come to its end; the rest is about that one
  std::uint64_t number = 0;            // of the message among those from one rank to the other, from 1
  bool has_met = false;                // whether the peer had come to it
  Fingerprint theirs{};                // of a mismatch: what the peer called; its root is the tag
  int peer = kAnyPeer;                 // of a receive from any, where it has met one, or lost one
  Presence presence = Presence::here;  // of a lost peer on another host, as far as it has told
  std::vector<std::size_t> awaited{};  // after a timeout, or an interruption: see PairOrder::awaited()
};

// Of each peer one send and one receive are under way at a time, in the order of the calls.
class PairOrder {
 public:
  // `peers` are below `size`; kAnyPeer only alone.
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

  // Of the active ones those that the peer has not come to; where there is none, all.
  template <class HasMet>
  std::vector<std::size_t> awaited(const HasMet& has_met) const {
    std::vector<std::size_t> calls;
    std::copy_if(active_.begin(), active_.end(), std::back_inserter(calls), [&](std::size_t i) { return !has_met(i); });
    return calls.empty() ? active_ : calls;
  }

  // The first of those behind active()[at] that is wanted takes its place, which comes next then. False: there is none.
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

  // active()[at] has come to its end: the next one of its kind takes its place, if there is one.
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

  std::vector<std::size_t> next_, last_, active_;  // kept, so that no call allocates
};

}  // namespace ddp::cpu_backend
