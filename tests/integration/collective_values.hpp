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

// Values that a test asks for many times: of index 0 to count() - 1, each computed once.
template <class T>
class Remembered {
 public:
  std::size_t count() const { return values_.size(); }
  const T* values() const { return values_.data(); }

  // Moves the values that are there.
  template <class Value>
  void extend(std::size_t least, const Value& value) {
    const std::size_t computed = values_.size();
    if (least <= computed) return;
    values_.resize(std::max(least, 2 * computed));
    for (std::size_t i = computed; i < values_.size(); ++i) values_[i] = value(i);
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

template <class T>
struct Elements {
  int rank = -1;
  std::size_t count = 0;
  const T* values = nullptr;
};
template <class T>
constinit inline thread_local Elements<T> elements_asked_for_last{};

// The elements of a rank, `count` or more of them; until the next call.
template <class T>
const Elements<T>& elements(int rank, std::size_t count) {
  auto& last = elements_asked_for_last<T>;
  if (rank != last.rank || count > last.count) {
    thread_local std::map<int, Remembered<T>> all;
    auto& its = all[rank];
    its.extend(count, [&](std::size_t i) { return computed_element<T>(rank, i); });
    last = {rank, its.count(), its.values()};
  }
  return last;
}

// What element i of a rank starts as: sums of these depend on their order, those of integers overflow, and here and
// there one is NaN.
template <class T>
T element(int rank, std::size_t i) {
  return elements<T>(rank, i + 1).values[i];
}

// What of it goes into a reduction.
template <class T>
T given(ReduceOp op, int rank, T value) {
  return op == ReduceOp::premul_sum ? multiplied(value, factor_of(rank)) : value;
}

// Over the ranks of each host, then over the hosts.
template <class T>
T computed_reduction(ReduceOp op, const RanksByHost& by_host, std::size_t i) {
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

// What element i of a reduction has to be: reduced<T>(op, by_host)(i).
template <class T>
class Reduced {
 public:
  Reduced(ReduceOp op, const RanksByHost& by_host) : op_(op), by_host_(by_host) {
    thread_local std::map<std::pair<ReduceOp, RanksByHost>, Remembered<T>> all;
    values_ = &all[{op, by_host}];
  }
  T operator()(std::size_t i) const {
    if (i >= values_->count())
      values_->extend(i + 1, [&](std::size_t index) { return computed_reduction<T>(op_, by_host_, index); });
    return values_->values()[i];
  }

 private:
  ReduceOp op_;
  RanksByHost by_host_;
  Remembered<T>* values_;
};

template <class T>
Reduced<T> reduced(ReduceOp op, const RanksByHost& by_host) {
  return {op, by_host};
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
    std::copy_n(elements<T>(group.rank(), count).values, count, data_);
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
  if (count == 0) return;
  std::vector<T> wanted(count);
  for (std::size_t i = 0; i < count; ++i) wanted[i] = want(i);
  if (std::memcmp(have, wanted.data(), count * sizeof(T)) == 0) return;
  std::size_t i = 0;
  while (std::memcmp(&have[i], &wanted[i], sizeof(T)) == 0) ++i;
  FAIL() << what << ", element " << i << " of " << count << ": " << +widened(have[i]) << ", not "
         << +widened(wanted[i]);
}

}  // namespace ddp::testing
