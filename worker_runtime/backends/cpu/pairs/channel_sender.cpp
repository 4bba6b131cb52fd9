#include "worker_runtime/backends/cpu/pairs/channel_sender.hpp"

#include <algorithm>
#include <cstring>

namespace ddp::cpu_backend {

namespace {

constexpr std::size_t kEagerBytes = 8u << 10;  // up to this size, copying twice costs less than asking for the message

}  // namespace

void ChannelSender::begin(ChannelTransfer& transfer) {
  PairChannel& channel = *transfer.channel;
  const std::size_t bytes = transfer.data.size();
  if (bytes <= kInlineBytes) {
    if (bytes > 0) std::memcpy(channel.data.data(), transfer.data.data(), bytes);
  } else if (bytes <= std::min(kEagerBytes, channels_.slot_bytes())) {
    std::memcpy(transfer.slot, transfer.data.data(), bytes);
    transfer.moved = bytes;
  } else if (const auto placement = memory_.find(transfer.data.data(), bytes)) {
    transfer.call.location = placement->location;
  }
  const bool is_readable = transfer.moved < bytes && bytes > kInlineBytes && peer_memory_.can_read_all() &&
                           peer_memory_.is_readable(transfer.data.data(), bytes);
  const auto address = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(transfer.data.data()));
  channel.address.store(is_readable ? address : 0, std::memory_order_relaxed);
  PairChannel::store(channel.call, words_of(transfer.call, transfer.tag));
  channel.staged.store(transfer.moved, std::memory_order_relaxed);
  channel.sent.store(transfer.number);
  channels_.wake(transfer.peer);
}

TransferStep ChannelSender::step(ChannelTransfer& transfer) {
  PairChannel& channel = *transfer.channel;
  const std::uint64_t answer = channel.answer.load();
  if (answer == PairChannel::answer_to(transfer.number, MessageAnswer::taken)) return TransferStep::complete;
  if (answer == PairChannel::answer_to(transfer.number, MessageAnswer::mismatch)) return TransferStep::mismatch;
  const bool is_asked = answer == PairChannel::answer_to(transfer.number, MessageAnswer::stage);
  if (!is_asked || transfer.rest() == 0) return TransferStep::idle;
  const std::size_t slot_bytes = channels_.slot_bytes();
  const std::size_t room = slot_bytes - (transfer.moved - channel.taken.load());
  const std::size_t at = transfer.moved % slot_bytes;
  const std::size_t now = std::min({slot_bytes / 2, room, slot_bytes - at, transfer.rest()});
  if (now == 0) return TransferStep::idle;
  std::memcpy(transfer.slot + at, transfer.data.data() + transfer.moved, now);
  transfer.moved += now;
  channel.staged.store(transfer.moved);
  channels_.wake(transfer.peer);
  return TransferStep::moved;
}

}  // namespace ddp::cpu_backend
