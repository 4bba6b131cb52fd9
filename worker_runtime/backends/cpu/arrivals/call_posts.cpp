#include "worker_runtime/backends/cpu/arrivals/call_posts.hpp"

#include <cstring>
#include <utility>

namespace ddp::cpu_backend {

namespace {

FingerprintWords words_of(const PhaseLine& line) {
  FingerprintWords words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = line.posted[i].load(std::memory_order_relaxed);
  return words;
}

// The line in which the last call of a rank stands, of whatever phase.
const PhaseLine& line_of_last_call(const RankControl& rank) {
  const auto key = [](const PhaseLine& line) {
    return std::pair(line.call.load(std::memory_order_acquire), line.arrived.load(std::memory_order_relaxed));
  };
  return key(rank.line(0)) < key(rank.line(1)) ? rank.line(1) : rank.line(0);
}

}  // namespace

void CallPosts::post(const Fingerprint& fingerprint, std::uint64_t address) {
  ++call_;
  words_ = encode(fingerprint);
  address_ = address;
}

void CallPosts::put_data(const void* data, std::size_t bytes) { std::memcpy(data_.data(), data, bytes); }

void CallPosts::store(PhaseLine& line) const {
  for (std::size_t i = 0; i < words_.size(); ++i) line.posted[i].store(words_[i], std::memory_order_relaxed);
  for (std::size_t i = 0; i < data_.size(); ++i) line.data[i].store(data_[i], std::memory_order_relaxed);
  line.address.store(address_, std::memory_order_relaxed);
  line.call.store(call_, std::memory_order_release);
}

bool CallPosts::all_call_the_same() const {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!core::same_call(words_of(present_line(rank)), words_)) return false;
  }
  return true;
}

const std::vector<Fingerprint>& CallPosts::posted() {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) posted_[rank] = core::decode(words_of(present_line(rank)));
  return posted_;
}

std::uint64_t CallPosts::location(int rank) const {
  return core::location_of(words_of(present_line(static_cast<std::size_t>(rank))));
}

std::uint64_t CallPosts::address(int rank) const {
  return present_line(static_cast<std::size_t>(rank)).address.load(std::memory_order_relaxed);
}

void CallPosts::get_data(int rank, void* data, std::size_t bytes) const {
  const PhaseLine& line = present_line(static_cast<std::size_t>(rank));
  LineData words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = line.data[i].load(std::memory_order_relaxed);
  std::memcpy(data, words.data(), bytes);
}

std::uint64_t CallPosts::calls(int rank) const {
  return line_of_last_call(ranks_[static_cast<std::size_t>(rank)]).call.load(std::memory_order_relaxed);
}

Fingerprint CallPosts::last_call(int rank) const {
  return core::decode(words_of(line_of_last_call(ranks_[static_cast<std::size_t>(rank)])));
}

}  // namespace ddp::cpu_backend
