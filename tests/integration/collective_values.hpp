// What ranks put into collectives, and what has to come out of them, bit by bit, by a plain computation.
#pragma once

#include <ddp/ddp.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/plain_reduction.hpp"

namespace ddp::testing {

// All of them; of many elements, where each takes its time, only two: what depends on sizes is the same for all.
template <class T>
std::vector<ReduceOp> ops_for(std::size_t count) {
  if (kIsBoolean<T>) return {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max};
  constexpr ReduceOp kOther = std::is_integral_v<T> ? ReduceOp::max : ReduceOp::premul_sum;
  if (count > 100'000) return {ReduceOp::average, kOther};
  std::vector<ReduceOp> ops{ReduceOp::sum, ReduceOp::average, ReduceOp::product, ReduceOp::min, ReduceOp::max};
  if (kOther == ReduceOp::premul_sum) ops.push_back(kOther);
  return ops;
}

// What a rank multiplies by in a premul_sum: products are rounded, and stay finite.
inline double factor_of(int rank) { return (rank % 2 == 0 ? 1.0 : -1.0) / (rank + 3); }

inline CollectiveOptions options_for(ReduceOp op, int rank, CollectiveOptions options = {}) {
  if (op == ReduceOp::premul_sum) options.factor = factor_of(rank);
  return options;
}

using RanksByHost = std::vector<std::vector<int>>;  // the host with the lowest rank first, as sums go

// What element i of a rank starts as: sums of these depend on their order, those of integers overflow, and here and
// there one is NaN.
template <class T>
T element(int rank, std::size_t i) {
  const std::uint64_t mixed =
      (static_cast<std::uint64_t>(rank) + 1) * 0x9e3779b97f4a7c15u ^ (i + 1) * 0xbf58476d1ce4e5b9u;
  if constexpr (kIsBoolean<T>) {
    return {static_cast<std::uint8_t>(mixed >> 40 & 1)};
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(mixed * mixed >> (64 - 8 * sizeof(T)));
  } else {
    if (i % 1000 == 17 && rank == 1) return narrowed<T>(std::numeric_limits<Wide<T>>::quiet_NaN());
    const double middle = kLargeValue<T>;
    const double value = static_cast<double>(mixed >> 40) / (3.0 * 5.6e6) * 2 * middle - middle;
    return narrowed<T>(static_cast<Wide<T>>(value) * (rank % 2 == 0 ? Wide<T>{1} : Wide<T>{-1}));
  }
}

// What of it goes into a reduction.
template <class T>
T given(ReduceOp op, int rank, T value) {
  return op == ReduceOp::premul_sum ? multiplied(value, factor_of(rank)) : value;
}

// Over the ranks of each host, then over the hosts.
template <class T>
T reduced(ReduceOp op, const RanksByHost& by_host, std::size_t i) {
  Wide<T> of_all{};
  std::size_t size = 0;
  for (std::size_t host = 0; host < by_host.size(); ++host) {
    Wide<T> of_host{};
    for (std::size_t r = 0; r < by_host[host].size(); ++r, ++size) {
      const int rank = by_host[host][r];
      const Wide<T> value = widened(given<T>(op, rank, element<T>(rank, i)));
      of_host = r == 0 ? value : combined(op, of_host, value);
    }
    of_all = host == 0 ? of_host : combined(op, of_all, of_host);
  }
  return narrowed<T>(divided(op, of_all, size));
}

// Memory of `count` elements, filled with a rank's elements: the group's where `is_registered`, else plain. Allocating
// is collective, so every rank says too whether any rank has it registered.
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
  std::vector<T> values() const { return std::vector<T>(data_, data_ + count_); }
  void write(std::size_t begin, const std::vector<T>& values) {
    std::copy(values.begin(), values.end(), data_ + begin);
  }

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
    FAIL() << what << ", element " << i << " of " << count << ": " << +widened(have[i]) << ", not " << +widened(wanted);
  }
}

}  // namespace ddp::testing
