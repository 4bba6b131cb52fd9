// Messages between the ranks of a host, through the channels of PairChannels.
//
// ChannelSender and ChannelReceiver move one message. PairTransfers says which receive takes which message. A receive
// from any rank looks into the channels of all ranks.
//
// All calls of one run() make progress together; for each peer, one send and one receive at a time. A rank that can't
// go on spins, then yields its core, and then sleeps on its futex.
//
// Ranks are indices among the ranks of the host.
//
// Threads: run() one at a time; wake() and wake_all() from any.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>

#include "base/deadline.hpp"
#include "worker_runtime/backends/cpu/memory/peer_memory.hpp"
#include "worker_runtime/backends/cpu/memory/shared_memory.hpp"
#include "worker_runtime/backends/cpu/pairs/channel_receiver.hpp"
#include "worker_runtime/backends/cpu/pairs/channel_sender.hpp"
#include "worker_runtime/backends/cpu/pairs/channel_transfer.hpp"
#include "worker_runtime/backends/cpu/pairs/pair_call.hpp"
#include "worker_runtime/backends/cpu/pairs/pair_channels.hpp"
#include "worker_runtime/backends/cpu/pairs/pair_transfers.hpp"

namespace ddp::cpu_backend {

class PointToPoint {
 public:
  // About other ranks. Called often.
  struct Questions {
    std::function<bool(int rank)> is_here;   // it has neither ended nor left the group
    std::function<bool(int rank)> has_left;  // it left in good order
    std::function<bool()> is_given_up;       // by this rank
  };

  PointToPoint(int rank, int size, const SharedMemory& memory, const PeerMemory& peer_memory, Questions questions);
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  // Attached before the first run().
  PairChannels& channels() { return channels_; }

  // Sends and receives; peers[i] is the peer of calls[i]. A receive from any has kAnyPeer there, and is the only call.
  // With `first`, it completes without a peer if the other half has taken the first message.
  PairEnd run(std::span<const Collective> calls, std::span<const int> peers, base::Deadline& deadline,
              FirstMessage* first = nullptr);

  // The run of this rank, or of every rank, asks its Questions again.
  void wake() { channels_.wake_own(); }
  void wake_all() { channels_.wake_all(); }

 private:
  using Step = TransferStep;

  void begin(std::span<const Collective> calls, std::span<const int> peers, FirstMessage* first);
  bool advance();
  Step step(std::size_t at);
  Step look_for_message(std::size_t at, int peer);
  Step look_everywhere(std::size_t at);
  std::optional<int> lost_peer(const ChannelTransfer& transfer) const;
  void end_with_loss(std::size_t call, int peer);
  bool sleep(base::Deadline& deadline);

  Questions questions_;
  bool may_spin_;  // whether every rank can have a core to itself
  PairChannels channels_;
  ChannelSender sender_;
  ChannelReceiver receiver_;
  PairTransfers<ChannelTransfer> transfers_;
  int first_peer_ = 0;  // the peer at which a receive from any looks first; it changes, so that no rank is starved
};

}  // namespace ddp::cpu_backend
