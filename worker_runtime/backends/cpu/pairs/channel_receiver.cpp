#include "worker_runtime/backends/cpu/pairs/channel_receiver.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace ddp::cpu_backend {

namespace {

constexpr std::size_t kBlockBytesMax = 1u << 20;  // in one step, of memory that is read where it is

}  // namespace

TransferStep ChannelReceiver::begin(ChannelTransfer& transfer, const Fingerprint& sent) {
  PairChannel& channel = *transfer.channel;
  const std::size_t bytes = transfer.data.size();
  if (!transfer.to_keep && !fit(sent, transfer.call)) return answer(transfer, MessageAnswer::mismatch);
  if (bytes <= kInlineBytes) {
    if (bytes > 0) std::memcpy(transfer.data.data(), channel.data.data(), bytes);
    return answer(transfer, MessageAnswer::taken);
  }
  transfer.way = ChannelTransfer::Way::slot;
  if (channel.staged.load() == bytes) return take_from_slot(transfer);
  if (sent.location != core::kPlainMemory) transfer.held = memory_.hold(sent.location, bytes);
  if (transfer.held) {
    transfer.source = transfer.held->at(sent.location, transfer.peer);
    transfer.way = ChannelTransfer::Way::segment;
    return take_from_segment(transfer);
  }
  transfer.address = channel.address.load(std::memory_order_relaxed);
  if (transfer.address == 0) return ask_for_slot(transfer);
  transfer.way = ChannelTransfer::Way::peer;
  return take_from_peer(transfer);
}

TransferStep ChannelReceiver::step(ChannelTransfer& transfer) {
  switch (transfer.way) {
    case ChannelTransfer::Way::unknown: break;
    case ChannelTransfer::Way::slot: return take_from_slot(transfer);
    case ChannelTransfer::Way::segment: return take_from_segment(transfer);
    case ChannelTransfer::Way::peer: return take_from_peer(transfer);
  }
  return TransferStep::idle;
}

TransferStep ChannelReceiver::ask_for_slot(ChannelTransfer& transfer) {
  transfer.way = ChannelTransfer::Way::slot;
  transfer.moved = 0;
  transfer.channel->taken.store(0, std::memory_order_relaxed);
  return answer(transfer, MessageAnswer::stage);
}

TransferStep ChannelReceiver::take_from_slot(ChannelTransfer& transfer) {
  const std::size_t at = transfer.moved % channels_.slot_bytes();
  const std::size_t now = std::min(transfer.channel->staged.load() - transfer.moved, channels_.slot_bytes() - at);
  if (now == 0) return TransferStep::idle;
  std::memcpy(transfer.data.data() + transfer.moved, transfer.slot + at, now);
  transfer.moved += now;
  if (transfer.rest() == 0) return answer(transfer, MessageAnswer::taken);
  transfer.channel->taken.store(transfer.moved);
  channels_.wake(transfer.peer);
  return TransferStep::moved;
}

// If the memory can't be read, the sender copies the message into the slot. If the sender has ended, the caller finds
// that out as it does in every other wait.
TransferStep ChannelReceiver::take_from_peer(ChannelTransfer& transfer) {
  const std::size_t now = std::min(kBlockBytesMax, transfer.rest());
  if (peer_memory_.read(transfer.peer, transfer.address + transfer.moved, transfer.data.data() + transfer.moved, now) !=
      PeerMemory::Read::complete) {
    return ask_for_slot(transfer);
  }
  transfer.moved += now;
  return transfer.rest() == 0 ? answer(transfer, MessageAnswer::taken) : TransferStep::moved;
}

TransferStep ChannelReceiver::take_from_segment(ChannelTransfer& transfer) {
  const std::size_t now = std::min(kBlockBytesMax, transfer.rest());
  std::memcpy(transfer.data.data() + transfer.moved, transfer.source + transfer.moved, now);
  transfer.moved += now;
  return transfer.rest() == 0 ? answer(transfer, MessageAnswer::taken) : TransferStep::moved;
}

// A sender that gave up during the copy may have changed its memory, so the copy does not count then. The sender's side
// of this fence is Arrivals::leave().
TransferStep ChannelReceiver::answer(ChannelTransfer& transfer, MessageAnswer what) {
  std::atomic_thread_fence(std::memory_order_acquire);
  if (what == MessageAnswer::taken && !is_here_(transfer.peer)) return TransferStep::lost;
  PairChannel& channel = *transfer.channel;
  PairChannel::store(channel.wanted, words_of(transfer.call, transfer.tag));
  channel.answer.store(PairChannel::answer_to(transfer.number, what));
  channels_.wake(transfer.peer);
  if (what == MessageAnswer::taken) return TransferStep::complete;
  return what == MessageAnswer::mismatch ? TransferStep::mismatch : TransferStep::moved;
}

}  // namespace ddp::cpu_backend
