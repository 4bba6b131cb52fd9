// Collectives of a number, or of a range of them, in host memory:
//
//   double loss = ddp::all_reduce(world, my_loss, ddp::ReduceOp::average);  // a number: returns the result
//   ddp::all_reduce(world, counts);                                         // a range: in place
//   int port = ddp::broadcast(world, my_port, 0);
//   std::vector<double> times = ddp::all_gather(world, my_time);            // of rank r at r
//
// Ranges are std::vector, std::array, std::span (in a C++20 program), or others with data() and size(). Elements are
// those that DataTypeOf knows: float, double, std::int8_t, std::uint8_t, std::int32_t, std::int64_t, bool. Any other
// type is an error of the compiler, which says so.
//
// Each is one call of the group, with its order, deadline, threads and errors: see ddp/process_group.hpp. The group has
// to take host memory: the backend is `cpu`, or `cpu:cpu,cuda:nccl`; one of `nccl` alone throws InvalidArgument.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddp/memory.hpp"
#include "ddp/process_group.hpp"

namespace ddp {
inline namespace DDP_ABI {

namespace detail {

template <class T, class = void>
struct IsElement : std::false_type {};
template <class T>
struct IsElement<T, decltype(void(DataTypeOf<T>::value))> : std::true_type {};

template <class T>
using Plain = std::remove_cv_t<std::remove_reference_t<T>>;

template <class T, class Result>
using IfRange = std::enable_if_t<HasData<Plain<T>>::value, Result>;
template <class T, class Result>
using IfNumber = std::enable_if_t<!HasData<Plain<T>>::value, Result>;

template <class T>
constexpr void check_number() {
  static_assert(IsElement<T>::value,
                "ddp: a collective of a number takes float, double, std::int8_t, std::uint8_t, std::int32_t, "
                "std::int64_t and bool. For std::size_t and the like: convert to std::int64_t. For std::vector<bool>: "
                "std::vector<std::uint8_t>. For a struct: ddp/objects.hpp");
}

template <class Range>
constexpr void check_range() {
  static_assert(IsElement<std::remove_cv_t<ElementOf<Range>>>::value,
                "ddp: a collective of a range takes elements of the types float, double, std::int8_t, std::uint8_t, "
                "std::int32_t, std::int64_t and bool. For types of 16 and 8 bits: MemoryRange(pointer, count, type). "
                "For text and structs: ddp/objects.hpp");
}

template <class Range>
constexpr void check_written_range() {
  check_range<Range>();
  static_assert(!std::is_const<ElementOf<Range>>::value, "ddp: the result is written to the range, which is const");
  static_assert(OutlivesCall<Range>::value,
                "ddp: the result is written to the range, which is a temporary and ends with this statement");
}

template <class T>
constexpr void check_gathered() {
  static_assert(!std::is_same<T, bool>::value,
                "ddp: all_gather of bool would return a std::vector<bool>, whose elements are bits; use std::uint8_t");
}

}  // namespace detail

// The sum (or what else `op` says) over all ranks of `value`.
template <class T>
detail::IfNumber<T, T> all_reduce(ProcessGroup& group, T value, ReduceOp op = ReduceOp::sum,
                                  CollectiveOptions options = {}) {
  detail::check_number<T>();
  group.all_reduce(MemoryRange(&value, 1), op, options);
  return value;
}

// Every element becomes the sum (or what else `op` says) over all ranks of that element.
template <class Range>
detail::IfRange<Range, void> all_reduce(ProcessGroup& group, Range&& values, ReduceOp op = ReduceOp::sum,
                                        CollectiveOptions options = {}) {
  detail::check_written_range<Range>();
  group.all_reduce(MemoryRange(std::forward<Range>(values)), op, options);
}

// Root's `value`.
template <class T>
detail::IfNumber<T, T> broadcast(ProcessGroup& group, T value, int root, CollectiveOptions options = {}) {
  detail::check_number<T>();
  group.broadcast(MemoryRange(&value, 1), root, options);
  return value;
}

// The range becomes a copy of root's; of equal length on all ranks.
template <class Range>
detail::IfRange<Range, void> broadcast(ProcessGroup& group, Range&& values, int root, CollectiveOptions options = {}) {
  detail::check_written_range<Range>();
  group.broadcast(MemoryRange(std::forward<Range>(values)), root, options);
}

// The values of all ranks, by rank.
template <class T>
detail::IfNumber<T, std::vector<T>> all_gather(ProcessGroup& group, T value, CollectiveOptions options = {}) {
  detail::check_number<T>();
  detail::check_gathered<T>();
  std::vector<T> all(static_cast<std::size_t>(group.size()));
  group.all_gather(ConstMemoryRange(&value, 1), all, options);
  return all;
}

// The elements of all ranks, one rank after the other; equally many of each.
template <class Range, class Element = std::remove_cv_t<detail::ElementOf<const Range&>>>
detail::IfRange<Range, std::vector<Element>> all_gather(ProcessGroup& group, const Range& values,
                                                        CollectiveOptions options = {}) {
  detail::check_range<const Range&>();
  detail::check_gathered<Element>();
  std::vector<Element> all(values.size() * static_cast<std::size_t>(group.size()));
  group.all_gather(ConstMemoryRange(values), all, options);
  return all;
}

}  // namespace DDP_ABI
}  // namespace ddp
