// The shared memory through which the ranks of a host send messages: for each ordered pair of ranks a channel and a
// slot, and for each rank a futex to sleep on.
//
// A channel holds one message at a time. The sender writes one cache line of it, and the receiver the other. The slot
// is a ring buffer for messages that are copied twice. A rank sleeps on its own futex, whichever peers it waits for. A
// rank that changes a channel wakes the other rank of the pair. No wake-up is lost (arrivals/sleep.hpp).
//
// Every rank has a part of the memory, which begins with its RankEntry. The channels and slots of the messages that it
// sends follow.
//
// Ranks are indices among the ranks of the host.
//
// Threads: attach() before all else; the rest from any.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "worker_runtime/backends/cpu/arrivals/control_block.hpp"
#include "worker_runtime/backends/cpu/arrivals/futex.hpp"
#include "worker_runtime/backends/cpu/arrivals/sleep.hpp"
#include "worker_runtime/backends/cpu/memory/shared_memory.hpp"

namespace ddp::cpu_backend {

constexpr std::size_t kInlineBytes = 16;  // a message of at most this size is inside its channel

// The receiver's answer to a message.
enum class MessageAnswer : std::uint64_t {
  stage = 1,     // asks the sender to copy the message through the slot
  taken = 2,     // all of the message is received
  mismatch = 3,  // the receiver made another call
};

// In shared memory; zeroes before the first message.
struct PairChannel {
  using Call = std::array<std::atomic<std::uint64_t>, std::tuple_size_v<FingerprintWords>>;

  // The line that the sender writes.
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> sent;  // the number of the message; written after the rest
  Call call;
  std::atomic<std::uint64_t> staged;   // bytes of the message that have been copied into the slot
  std::atomic<std::uint64_t> address;  // of the message in the sender's process, if the receiver can read it; else 0
  std::array<std::byte, kInlineBytes> data;

  // The line that the receiver writes.
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> answer;  // see answer_to(); written after the rest
  Call wanted;
  std::atomic<std::uint64_t> taken;  // bytes of the message that have been copied out of the slot

  // The value of `answer` that answers message `number`.
  static constexpr std::uint64_t answer_to(std::uint64_t number, MessageAnswer what) {
    return number << 2 | static_cast<std::uint64_t>(what);
  }
  bool has_answer(std::uint64_t number, MessageAnswer what) const { return answer.load() == answer_to(number, what); }

  // The other values of its line, written last, make `call` and `wanted` visible.
  static FingerprintWords load(const Call& from) {
    FingerprintWords words{};
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = from[i].load(std::memory_order_relaxed);
    return words;
  }
  static void store(Call& to, const FingerprintWords& words) {
    for (std::size_t i = 0; i < words.size(); ++i) to[i].store(words[i], std::memory_order_relaxed);
  }
};

class PairChannels {
 public:
  // How much memory each rank needs.
  static std::size_t shared_bytes(int size);

  PairChannels(int rank, int size);

  // The memory begins `offset` bytes behind the beginning of each part of `segment`, and is zeroed.
  void attach(std::shared_ptr<Segment> segment, std::size_t offset);

  int rank() const { return rank_; }
  int size() const { return size_; }

  PairChannel& channel(int from, int to) const {
    return reinterpret_cast<PairChannel*>(part(from) + sizeof(RankEntry))[to];
  }
  std::byte* slot(int from, int to) const {
    const auto index = static_cast<std::size_t>(to < from ? to : to - 1);  // a rank has no slot to itself
    const std::size_t channels_bytes = static_cast<std::size_t>(size_) * sizeof(PairChannel);
    return part(from) + sizeof(RankEntry) + channels_bytes + index * slot_bytes_;
  }
  std::size_t slot_bytes() const { return slot_bytes_; }

  // Sleeps until wake() of this rank, or until the time that `look` returns: see sleep_unless_over().
  template <class Look>
  void sleep(Look look) {
    RankEntry& own = entry(rank_);
    sleep_unless_over(own.futex, own.sleepers, look);
  }

  // After a change that the rank may sleep for.
  void wake(int rank) {
    RankEntry& of_rank = entry(rank);
    if (of_rank.sleepers.load() == 0) return;
    of_rank.futex.fetch_add(1);
    futex_wake_all(of_rank.futex);
  }

  // Do nothing before attach(), which another thread may be calling.
  void wake_own();
  void wake_all();

  // A few values of each rank, which the others can read once all ranks have met again.
  using Announcement = std::array<std::uint64_t, 6>;
  void announce(const Announcement& announcement);
  Announcement announced(int rank) const;

 private:
  struct alignas(kCacheLineBytes) RankEntry {
    std::atomic<std::uint32_t> futex;     // written by any rank
    std::atomic<std::uint32_t> sleepers;  // written by its rank, as is the next
    std::array<std::atomic<std::uint64_t>, std::tuple_size_v<Announcement>> announced;
  };
  static_assert(sizeof(RankEntry) == kCacheLineBytes);

  std::byte* part(int rank) const { return segment_->part(rank) + offset_; }
  RankEntry& entry(int rank) const { return *reinterpret_cast<RankEntry*>(part(rank)); }

  int rank_;
  int size_;
  std::size_t slot_bytes_;
  std::shared_ptr<Segment> segment_;
  std::size_t offset_ = 0;
  std::atomic<bool> is_attached_{false};
};

static_assert(sizeof(PairChannel) == 2 * kCacheLineBytes);

}  // namespace ddp::cpu_backend
