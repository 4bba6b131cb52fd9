#include "worker_runtime/backends/cpu/pairs/pair_channels.hpp"

#include <algorithm>

namespace ddp::cpu_backend {

namespace {

constexpr std::size_t kSlotsBytes = 1u << 20;  // of one rank, for all its peers
constexpr std::size_t kSlotBytesMin = 4u << 10;
constexpr std::size_t kSlotBytesMax = 128u << 10;  // stays in a core's cache

std::size_t slot_bytes_for(int size) {
  const std::size_t share = kSlotsBytes / static_cast<std::size_t>(std::max(size - 1, 1));
  return std::clamp(share / kCacheLineBytes * kCacheLineBytes, kSlotBytesMin, kSlotBytesMax);
}

}  // namespace

std::size_t PairChannels::shared_bytes(int size) {
  const auto ranks = static_cast<std::size_t>(size);
  return sizeof(RankEntry) + ranks * sizeof(PairChannel) + (ranks - 1) * slot_bytes_for(size);
}

PairChannels::PairChannels(int rank, int size) : rank_(rank), size_(size), slot_bytes_(slot_bytes_for(size)) {}

void PairChannels::attach(std::shared_ptr<Segment> segment, std::size_t offset) {
  segment_ = std::move(segment);
  offset_ = offset;
  is_attached_.store(true);
}

void PairChannels::wake_own() {
  if (is_attached_.load()) wake(rank_);
}

void PairChannels::wake_all() {
  for (int rank = 0; is_attached_.load() && rank < size_; ++rank) wake(rank);
}

void PairChannels::announce(const Announcement& announcement) {
  for (std::size_t i = 0; i < announcement.size(); ++i) entry(rank_).announced[i].store(announcement[i]);
}

PairChannels::Announcement PairChannels::announced(int rank) const {
  Announcement announcement{};
  for (std::size_t i = 0; i < announcement.size(); ++i) announcement[i] = entry(rank).announced[i].load();
  return announcement;
}

}  // namespace ddp::cpu_backend
