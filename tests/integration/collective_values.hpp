// What ranks put into collectives, and what has to come out of them, bit by bit, by a plain computation.
#pragma once

#include <ddp/ddp.hpp>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace ddp::testing {

using RanksByHost = std::vector<std::vector<int>>;  // the host with the lowest rank first, as sums go

// What element i of a rank starts as: sums of these depend on their order, and those of integers overflow.
template <class T>
T element(int rank, std::size_t i) {
  const std::uint64_t mixed =
      (static_cast<std::uint64_t>(rank) + 1) * 0x9e3779b97f4a7c15u ^ (i + 1) * 0xbf58476d1ce4e5b9u;
  if constexpr (std::is_same_v<T, std::int64_t>) {
    return static_cast<std::int64_t>(mixed * mixed);
  } else {
    return static_cast<T>(static_cast<double>(mixed >> 40) / 3.0 - 1e6) * (rank % 2 == 0 ? T{1} : T{-1});
  }
}

// Over the ranks of each host, then over the hosts.
template <class T>
T reduced(ReduceOp op, const RanksByHost& by_host, std::size_t i) {
  using Sum = std::conditional_t<std::is_same_v<T, std::int64_t>, std::uint64_t, T>;
  Sum sum{};
  int size = 0;
  for (std::size_t host = 0; host < by_host.size(); ++host) {
    Sum of_host{};
    for (std::size_t r = 0; r < by_host[host].size(); ++r, ++size) {
      const auto value = static_cast<Sum>(element<T>(by_host[host][r], i));
      of_host = r == 0 ? value : of_host + value;
    }
    sum = host == 0 ? of_host : sum + of_host;
  }
  return op == ReduceOp::sum ? static_cast<T>(sum) : static_cast<T>(sum) / static_cast<T>(size);
}

// Memory of `count` elements, filled with a rank's elements: the group's where `is_registered`, else plain. Allocating is
// collective, so every rank says too whether any rank has it registered.
template <class T>
class Buffer {
 public:
  Buffer(ProcessGroup& group, bool any_registered, bool is_registered, std::size_t count)
      : plain_(count), count_(count) {
    if (any_registered) registered_ = group.allocate(count * sizeof(T) + 1);
    data_ = is_registered ? static_cast<T*>(registered_.data()) : plain_.data();
    for (std::size_t i = 0; i < count; ++i) data_[i] = element<T>(group.rank(), i);
  }

  MemoryRange range() const { return {data_, count_}; }
  MemoryRange part(std::size_t begin, std::size_t count) const { return {data_ + begin, count}; }
  T* data() const { return data_; }

 private:
  std::vector<T> plain_;
  RegisteredMemory registered_;
  std::size_t count_;
  T* data_;
};

// Bit by bit, so that no tolerance hides a difference between ranks. A macro for each element would take a minute under
// sanitizers.
template <class T, class Want>
void expect_bits(const std::string& what, const T* have, std::size_t count, const Want& want) {
  for (std::size_t i = 0; i < count; ++i) {
    const T wanted = want(i);
    if (std::memcmp(&have[i], &wanted, sizeof(T)) == 0) continue;
    FAIL() << what << ", element " << i << " of " << count << ": " << have[i] << ", not " << wanted;
  }
}

}  // namespace ddp::testing
