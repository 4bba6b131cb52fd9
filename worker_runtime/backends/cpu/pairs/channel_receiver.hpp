// The receiver's side of a channel.
//
// The receiver compares the message with its own call, and takes the data by the shortest way that there is:
//   - a message of up to kInlineBytes from the channel;
//   - a message that the sender has copied into the slot already, from the slot;
//   - from where the message is, if that is registered memory, or if the kernel lets ranks read each other's memory;
//   - else from the slot: both ranks copy block by block at the same time.
// Then it answers, which ends the send.
//
// Nothing here blocks.
//
// Threads: one at a time.
#pragma once

#include <functional>

#include "worker_runtime/backends/cpu/memory/peer_memory.hpp"
#include "worker_runtime/backends/cpu/memory/shared_memory.hpp"
#include "worker_runtime/backends/cpu/pairs/channel_transfer.hpp"
#include "worker_runtime/backends/cpu/pairs/pair_channels.hpp"

namespace ddp::cpu_backend {

class ChannelReceiver {
 public:
  // All of these outlive this object. `is_here`: the rank has neither ended nor left the group.
  ChannelReceiver(PairChannels& channels, const SharedMemory& memory, const PeerMemory& peer_memory,
                  const std::function<bool(int rank)>& is_here)
      : channels_(channels), memory_(memory), peer_memory_(peer_memory), is_here_(is_here) {}

  // Begins to take the message that the transfer has accepted; `sent` is what the channel says of it.
  TransferStep begin(ChannelTransfer& transfer, const Fingerprint& sent);

  // Takes the next block of a message that begin() has not taken at once.
  TransferStep step(ChannelTransfer& transfer);

 private:
  TransferStep take_from_slot(ChannelTransfer& transfer);
  TransferStep take_from_segment(ChannelTransfer& transfer);
  TransferStep take_from_peer(ChannelTransfer& transfer);
  TransferStep ask_for_slot(ChannelTransfer& transfer);
  TransferStep answer(ChannelTransfer& transfer, MessageAnswer what);

  PairChannels& channels_;
  const SharedMemory& memory_;
  const PeerMemory& peer_memory_;
  const std::function<bool(int rank)>& is_here_;
};

}  // namespace ddp::cpu_backend
