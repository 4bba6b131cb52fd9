#include "worker_runtime/checkpoint/checkpoint_memory.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace ddp {

namespace checkpoint {

Image ImagePool::take(std::size_t bytes, const Allocate& allocate) {
  const std::lock_guard lock(mutex_);
  const auto is_free = [](const Buffer& buffer) { return buffer.data.use_count() == 1; };
  const auto found = std::find_if(buffers_.begin(), buffers_.end(),
                                  [&](const Buffer& buffer) { return is_free(buffer) && buffer.capacity >= bytes; });
  if (found != buffers_.end()) return {found->data, bytes};
  std::erase_if(buffers_, is_free);                // too small: make room before the next is allocated
  const std::size_t capacity = bytes + bytes / 8;  // texts have another length each time
  const Buffer buffer{allocate(capacity), capacity};
  buffers_.push_back(buffer);
  return {buffer.data, bytes};
}

// All ranks, ordered by host, give their copies to the rank that is as many places further as the largest host has
// ranks.
std::vector<int> copy_holders(const std::vector<int>& host_of) {
  std::map<int, std::vector<int>> ranks_of;
  for (std::size_t rank = 0; rank < host_of.size(); ++rank) ranks_of[host_of[rank]].push_back(static_cast<int>(rank));
  std::vector<int> order;
  std::size_t largest = 0;
  for (const auto& [host, ranks] : ranks_of) {
    order.insert(order.end(), ranks.begin(), ranks.end());
    largest = std::max(largest, ranks.size());
  }
  const std::size_t shift = ranks_of.size() == 1 ? 1 : largest;
  std::vector<int> holders(host_of.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    holders[static_cast<std::size_t>(order[i])] = order[(i + shift) % order.size()];
  }
  return holders;
}

}  // namespace checkpoint

void CheckpointMemory::Impl::make_room() {
  const std::lock_guard lock(mutex_);
  while (held_.size() >= kHeldMax) held_.erase(held_.begin());
}

void CheckpointMemory::Impl::keep(checkpoint::HeldCheckpoint held) {
  const std::lock_guard lock(mutex_);
  const checkpoint::CheckpointId& id = held.manifest.id;
  const auto place = std::lower_bound(
      held_.begin(), held_.end(), id,
      [](const checkpoint::HeldCheckpoint& each, const checkpoint::CheckpointId& of) { return each.manifest.id < of; });
  if (place != held_.end() && place->manifest.id == id) {
    *place = std::move(held);
  } else {
    held_.insert(place, std::move(held));
  }
}

void CheckpointMemory::Impl::keep_only(const std::optional<checkpoint::CheckpointId>& id) {
  const std::lock_guard lock(mutex_);
  std::erase_if(held_, [&](const checkpoint::HeldCheckpoint& each) { return !id || !(each.manifest.id == *id); });
}

std::vector<checkpoint::HeldCheckpoint> CheckpointMemory::Impl::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

CheckpointMemory::CheckpointMemory() : impl_(std::make_shared<Impl>()) {}
CheckpointMemory::~CheckpointMemory() = default;

}  // namespace ddp
