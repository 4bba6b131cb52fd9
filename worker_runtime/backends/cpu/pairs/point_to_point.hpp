// Messages between two ranks of a host: for each ordered pair a channel in shared memory, which holds one message at a
// time.
//
// The sender shows in its channel what it sends and where it lies. The receiver compares that with what it wants, and
// takes it by the shortest way that there is: up to 16 bytes out of the channel's line; up to kEagerBytes out of the
// channel's slot, where the sender has put them beforehand; where it lies, if that is registered memory or the kernel
// lets ranks read each other's; else it asks for the slot, through which both copy block by block at the same time.
// Then it answers, which ends the send.
//
// A message whose tag is not that of the receive that finds it is for a later receive of the same run(), or is kept
// (KeptMessages). A receive from any rank looks into the channels of all.
//
// All calls of one run() make progress together, of each peer one send and one receive at a time. A rank that can't go
// on spins, gives its core away, and then sleeps on its own bell, whichever peers it waits for; whoever changes a
// channel rings the other end's. No wake-up is lost, as with Arrivals.
//
// Ranks count among those of the host.
//
// Threads: run() one at a time; the rest from any.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/deadline.hpp"
#include "worker_runtime/backends/cpu/memory/peer_memory.hpp"
#include "worker_runtime/backends/cpu/memory/shared_memory.hpp"
#include "worker_runtime/backends/cpu/pairs/kept_messages.hpp"
#include "worker_runtime/backends/cpu/pairs/pair_call.hpp"

namespace ddp::cpu_backend {

class PointToPoint {
 public:
  // What it asks about other ranks. Called often.
  struct Questions {
    std::function<bool(int rank)> is_here;   // neither ended nor gone from the group
    std::function<bool(int rank)> has_left;  // in good order
    std::function<bool()> is_given_up;       // by this rank
  };

  // Of the memory of each rank.
  static std::size_t shared_bytes(int size);

  PointToPoint(int rank, int size, const SharedMemory& memory, const PeerMemory& peer_memory, Questions questions);
  ~PointToPoint();
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  // The memory: `offset` bytes behind the beginning of each part of `segment`, and zeroed. Nothing can be run before.
  void attach(std::shared_ptr<Segment> segment, std::size_t offset);

  // A send or a receive of the peer at the same place of `peers`; a receive from any has kAnyPeer there, and is alone;
  // with `first` it ends, without a peer, when another has met the first message.
  PairEnd run(std::span<const Collective> calls, std::span<const int> peers, base::Deadline& deadline,
              FirstMessage* first = nullptr);

  // A few words of each rank that others of the host can read once all have met again.
  using Words = std::array<std::uint64_t, 6>;
  void announce(const Words& words);
  Words announced(int rank) const;

  // This rank looks again, or all do, at what Questions ask about.
  void wake();
  void wake_all();

 private:
  struct Channel;
  struct Bell;
  struct Transfer;
  enum class Step : std::uint8_t { idle, moved, complete, mismatch, lost };

  std::byte* part(int rank) const { return segment_->part(rank) + offset_; }
  Bell& bell(int rank) const;
  Channel& channel(int from, int to) const;
  std::byte* slot(int from, int to) const;

  void begin(std::span<const Collective> calls, std::span<const int> peers);
  bool advance();
  Step step(std::size_t at);
  Step step_send(Transfer& transfer);
  Step step_receive(std::size_t at);
  Step look_for_message(std::size_t at, int peer);
  Step look_everywhere(std::size_t at);
  Step take_kept(Transfer& transfer, const KeptMessages::Message& message);
  bool prepare_to_keep(Transfer& transfer, int peer, const Fingerprint& sent);
  void keep(Transfer& transfer);
  std::optional<int> lost_peer(const Transfer& transfer) const;
  Step take(Transfer& transfer);
  Step take_from_slot(Transfer& transfer);
  Step take_from_segment(Transfer& transfer);
  Step take_from_peer(Transfer& transfer);
  Step ask_for_slot(Transfer& transfer);
  Step answer(Transfer& transfer, std::uint64_t verdict);
  void post(Transfer& transfer);
  void end_with(PairEnd::Kind kind, const Transfer& transfer);
  void end_with_loss(const Transfer& transfer, int peer);
  void end_waiting(PairEnd::Kind kind);
  bool sleep(base::Deadline& deadline);
  void ring(int rank);

  int rank_;
  int size_;
  const SharedMemory& memory_;
  const PeerMemory& peer_memory_;
  Questions questions_;
  bool may_spin_;  // whether every rank can have a core to itself
  std::shared_ptr<Segment> segment_;
  std::size_t offset_ = 0;
  std::atomic<bool> is_attached_{false};
  std::size_t slot_bytes_;
  std::vector<std::uint64_t> sent_, received_;  // messages, by peer
  KeptMessages kept_;
  int first_peer_ = 0;  // that a receive from any looks at, so that no rank starves another

  // Of the present run(); kept, so that no call allocates.
  std::vector<Transfer> transfers_;
  PairOrder order_;
  FirstMessage* first_ = nullptr;
  std::optional<PairEnd> end_;
};

}  // namespace ddp::cpu_backend
