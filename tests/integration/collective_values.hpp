// What ranks put into collectives, and what has to come out of them, bit by bit, by a plain computation.
#pragma once

#include <ddp/ddp.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
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

// Values that a test asks for many times, each computed once.
template <class T>
class Remembered {
 public:
  // At least `count` values, those that are missing by compute(values, begin, end). Valid until more are asked for.
  template <class Compute>
  const T* at_least(std::size_t count, const Compute& compute) {
    const std::size_t computed = values_.size();
    if (count > computed) {
      values_.resize(count);
      compute(values_.data(), computed, count);
    }
    return values_.data();
  }

 private:
  std::vector<T> values_;
};

template <class T>
T computed_element(int rank, std::size_t i) {
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

// What the elements of a rank start as, at least `count` of them: sums of these depend on their order, those of
// integers overflow, and here and there one is NaN. Valid until more elements of the rank are asked for.
template <class T>
const T* elements(int rank, std::size_t count) {
  thread_local std::map<int, Remembered<T>> all;
  return all[rank].at_least(count, [rank](T* values, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) values[i] = computed_element<T>(rank, i);
  });
}

// Some elements of a rank.
struct Slice {
  int rank;
  std::size_t begin, count;
};

// The same elements of each rank.
inline std::vector<Slice> of_all_ranks(int size, std::size_t begin, std::size_t count) {
  std::vector<Slice> slices;
  for (int rank = 0; rank < size; ++rank) slices.push_back({rank, begin, count});
  return slices;
}

template <class T>
std::vector<T> concatenated(const std::vector<Slice>& slices) {
  std::vector<T> all;
  for (const auto& [rank, begin, count] : slices) {
    const T* const from = elements<T>(rank, begin + count) + begin;
    all.insert(all.end(), from, from + count);
  }
  return all;
}

// What of it goes into a reduction.
template <class T>
T given(ReduceOp op, int rank, T value) {
  return op == ReduceOp::premul_sum ? multiplied(value, factor_of(rank)) : value;
}

// Over the ranks of each host, then over the hosts. Array by array, which is fast even where nothing is optimised.
template <class T>
void compute_reduction(ReduceOp op, const RanksByHost& by_host, T* values, std::size_t begin, std::size_t end) {
  const std::size_t count = end - begin;
  const std::unique_ptr<Wide<T>[]> of_all(new Wide<T>[count]), of_host(new Wide<T>[count]);
  const auto add = [op, count](Wide<T>* sums, const auto& value, bool is_first) {
    for (std::size_t i = 0; i < count; ++i) sums[i] = is_first ? value(i) : combined(op, sums[i], value(i));
  };
  std::size_t size = 0;
  for (std::size_t host = 0; host < by_host.size(); ++host) {
    for (std::size_t r = 0; r < by_host[host].size(); ++r, ++size) {
      const int rank = by_host[host][r];
      const T* const own = elements<T>(rank, end) + begin;
      add(
          of_host.get(), [op, rank, own](std::size_t i) { return widened(given<T>(op, rank, own[i])); }, r == 0);
    }
    add(
        of_all.get(), [sums = of_host.get()](std::size_t i) { return sums[i]; }, host == 0);
  }
  for (std::size_t i = 0; i < count; ++i) values[begin + i] = narrowed<T>(divided(op, of_all[i], size));
}

// What a reduction has to be, at least `count` elements of it. Valid until more of the same reduction are asked for.
template <class T>
const T* reduced(ReduceOp op, const RanksByHost& by_host, std::size_t count) {
  thread_local std::map<std::pair<ReduceOp, RanksByHost>, Remembered<T>> all;
  return all[{op, by_host}].at_least(count, [&](T* values, std::size_t begin, std::size_t end) {
    compute_reduction(op, by_host, values, begin, end);
  });
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
    std::copy_n(elements<T>(group.rank(), count), count, data_);
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

// Bit by bit, so that no tolerance hides a difference between ranks.
template <class T>
void expect_bits(const std::string& what, const T* have, const T* wanted, std::size_t count) {
  if (count == 0 || std::memcmp(have, wanted, count * sizeof(T)) == 0) return;
  std::size_t i = 0;
  while (std::memcmp(&have[i], &wanted[i], sizeof(T)) == 0) ++i;
  FAIL() << what << ", element " << i << " of " << count << ": " << +widened(have[i]) << ", not "
         << +widened(wanted[i]);
}

template <class T>
void expect_bits(const std::string& what, const T* have, const std::vector<T>& wanted) {
  expect_bits(what, have, wanted.data(), wanted.size());
}

}  // namespace ddp::testing
