// The sender's side of a channel.
//
// The sender writes into the channel what the message is, and where it is. A small message is in the channel or in the
// slot at once. Of another message the sender copies the data into the slot if the receiver asks for it.
//
// Nothing here blocks.
//
// Threads: one at a time.
#pragma once

#include "worker_runtime/backends/cpu/memory/peer_memory.hpp"
#include "worker_runtime/backends/cpu/memory/shared_memory.hpp"
#include "worker_runtime/backends/cpu/pairs/channel_transfer.hpp"
#include "worker_runtime/backends/cpu/pairs/pair_channels.hpp"

namespace ddp::cpu_backend {

class ChannelSender {
 public:
  // All of these outlive this object.
  ChannelSender(PairChannels& channels, const SharedMemory& memory, const PeerMemory& peer_memory)
      : channels_(channels), memory_(memory), peer_memory_(peer_memory) {}

  // Shows the message to the receiver. The transfer has its number, and the channel is free.
  void begin(ChannelTransfer& transfer);

  // Looks for the receiver's answer, and copies the next block if the receiver asks for it.
  TransferStep step(ChannelTransfer& transfer);

 private:
  PairChannels& channels_;
  const SharedMemory& memory_;
  const PeerMemory& peer_memory_;
};

}  // namespace ddp::cpu_backend
