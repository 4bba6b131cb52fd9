// A send or receive through a channel of shared memory: how far it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "worker_runtime/backends/cpu/memory/shared_memory.hpp"
#include "worker_runtime/backends/cpu/pairs/pair_channels.hpp"
#include "worker_runtime/backends/cpu/pairs/pair_transfers.hpp"

namespace ddp::cpu_backend {

struct ChannelTransfer : PairTransfer {
  using PairTransfer::PairTransfer;

  PairChannel* channel = nullptr;  // null in a receive from any that has accepted no message, as is the next
  std::byte* slot = nullptr;
  std::span<std::byte> data;  // the memory to send from or to receive into: that of the caller, or of `to_keep`
  std::size_t moved = 0;      // bytes

  // How a receive gets the data; unknown until then. `source`: inside the segment `held`. `address`: in the process of
  // the peer.
  enum class Way : std::uint8_t { unknown, slot, segment, peer } way = Way::unknown;
  std::shared_ptr<const Segment> held;
  const std::byte* source = nullptr;
  std::uint64_t address = 0;

  std::size_t rest() const { return data.size() - moved; }

  // See PairTransfers.
  bool has_met() const {
    if (number == 0 || to_keep) return false;
    return kept_call || way != Way::unknown || channel->has_answer(number, MessageAnswer::stage);
  }
  Fingerprint peer_call() const { return core::decode(PairChannel::load(is_send() ? channel->wanted : channel->call)); }
};

}  // namespace ddp::cpu_backend
