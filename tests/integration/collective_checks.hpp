// The collectives that every backend has, against a plain computation, bit by bit: the same checks for all backends.
//
// `Buffer<T>` is memory of the group's device with the elements of a rank: constructed from (group, whether any rank
// has it registered, whether this one has, count), with range(), part(), values() and write(begin, values).
#pragma once

#include <ddp/ddp.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "tests/integration/collective_values.hpp"

namespace ddp::testing {

constexpr std::size_t kBlockBytes = 1u << 20;  // of staging: what these numbers take several of, for each type
constexpr std::size_t kCountMax = 550'001;
constexpr std::size_t kCountPerRankMax = 280'007;  // where every rank has as many

enum class Where { plain, registered, registered_on_rank_0 };

inline const char* name_of(Where where) {
  switch (where) {
    case Where::plain: return "plain";
    case Where::registered: return "registered";
    case Where::registered_on_rank_0: return "registered on rank 0 only";
  }
  return "";
}

template <class T, template <class> class Buffer>
Buffer<T> buffer(ProcessGroup& group, Where where, std::size_t count) {
  const bool is_registered = where == Where::registered || (where == Where::registered_on_rank_0 && group.rank() == 0);
  return Buffer<T>(group, where != Where::plain, is_registered, count);
}

inline RanksByHost one_host(const ProcessGroup& group) {
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return {ranks};
}

template <class T, template <class> class Buffer>
void check_in_place_collectives(ProcessGroup& group, Where where, std::size_t count) {
  const auto ranks = one_host(group);
  for (const ReduceOp op : ops_for<T>(count)) {
    auto inout = buffer<T, Buffer>(group, where, count);
    group.all_reduce(inout.range(), op, options_for(op, group.rank()));
    expect_bits("all_reduce", inout.values().data(), reduced<T>(op, ranks, count), count);
  }
  for (const int root : {0, group.size() - 1}) {
    auto inout = buffer<T, Buffer>(group, where, count);
    group.broadcast(inout.range(), root);
    expect_bits("broadcast", inout.values().data(), elements<T>(root, count), count);
  }
}

// With `count` elements of every rank.
template <class T, template <class> class Buffer>
void check_gathering_collectives(ProcessGroup& group, Where where, std::size_t count) {
  const auto ranks = one_host(group);
  const std::size_t all = count * static_cast<std::size_t>(group.size());
  const std::size_t own = count * static_cast<std::size_t>(group.rank());
  const std::vector<T> gathered = concatenated<T>(of_all_ranks(group.size(), 0, count));
  auto one = buffer<T, Buffer>(group, where, count);
  auto output = buffer<T, Buffer>(group, where, all);
  group.all_gather(one.range(), output.range());
  expect_bits("all_gather", output.values().data(), gathered);

  auto in_place = buffer<T, Buffer>(group, where, all);
  in_place.write(own, one.values());
  group.all_gather(in_place.part(own, count), in_place.range());
  expect_bits("all_gather in place", in_place.values().data(), gathered);

  for (const ReduceOp op : ops_for<T>(count)) {
    auto input = buffer<T, Buffer>(group, where, all);
    const T* const wanted = reduced<T>(op, ranks, all) + own;
    group.reduce_scatter(input.range(), one.range(), op, options_for(op, group.rank()));
    expect_bits("reduce_scatter", one.values().data(), wanted, count);
    if (op != ReduceOp::sum) continue;
    group.reduce_scatter(input.range(), input.part(own, count), op);
    expect_bits("reduce_scatter in place", input.values().data() + own, wanted, count);
  }
}

// With `count` elements of every rank, to or from each rank alone.
template <class T, template <class> class Buffer>
void check_divided_collectives(ProcessGroup& group, Where where, std::size_t count) {
  const auto ranks = one_host(group);
  const auto size = static_cast<std::size_t>(group.size());
  const std::size_t all = count * size;
  const std::size_t own = count * static_cast<std::size_t>(group.rank());
  for (const int root : {0, group.size() - 1}) {
    const bool is_root = group.rank() == root;
    auto one = buffer<T, Buffer>(group, where, count);
    auto whole = buffer<T, Buffer>(group, where, all);
    group.gather(one.range(), is_root ? whole.range() : whole.part(0, 0), root);
    const auto unchanged = std::vector<Slice>{{group.rank(), 0, all}};
    expect_bits("gather", whole.values().data(),
                concatenated<T>(is_root ? of_all_ranks(group.size(), 0, count) : unchanged));

    auto divided = buffer<T, Buffer>(group, where, all);
    group.scatter(is_root ? divided.range() : divided.part(0, 0), one.range(), root);
    expect_bits("scatter", one.values().data(), elements<T>(root, own + count) + own, count);

    for (const ReduceOp op : ops_for<T>(count)) {
      const T* const sums = reduced<T>(op, ranks, count);
      const T* const before = elements<T>(group.rank(), count);
      auto input = buffer<T, Buffer>(group, where, count);
      auto output = buffer<T, Buffer>(group, where, count);
      group.reduce(input.range(), is_root ? output.range() : output.part(0, 0), root, op,
                   options_for(op, group.rank()));
      expect_bits("reduce", output.values().data(), is_root ? sums : before, count);
      expect_bits("input of reduce", input.values().data(), before, count);
      group.reduce(input.range(), is_root ? input.range() : input.part(0, 0), root, op, options_for(op, group.rank()));
      if (is_root) {
        expect_bits("reduce in place", input.values().data(), sums, count);
      }
    }
  }
  auto input = buffer<T, Buffer>(group, where, all);
  auto output = buffer<T, Buffer>(group, where, all);
  group.all_to_all(input.range(), output.range());
  expect_bits("all_to_all", output.values().data(), concatenated<T>(of_all_ranks(group.size(), own, count)));
}

// Where ranks have different counts, some of them 0: up to `count` of every rank, or from each to each.
template <class T, template <class> class Buffer>
void check_uneven_collectives(ProcessGroup& group, const RanksByHost& ranks, Where where, std::size_t count) {
  const int size = group.size();
  const auto part = [&](int giver, int taker) {
    const auto at = static_cast<std::size_t>(3 * giver + 5 * taker);
    return at % 4 == 1 ? std::size_t{0} : count - count * at / static_cast<std::size_t>(8 * size);
  };
  const auto total_of = [](const std::vector<std::size_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  };
  const auto begin_of = [](const std::vector<std::size_t>& counts, int rank) {
    return std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
  };
  std::vector<std::size_t> counts, given, taken;
  std::vector<Slice> gathered, exchanged;
  for (int rank = 0; rank < size; ++rank) {
    counts.push_back(part(rank, 0));
    given.push_back(part(group.rank(), rank));
    taken.push_back(part(rank, group.rank()));
    gathered.push_back({rank, 0, counts.back()});
    std::size_t begin = 0;
    for (int taker = 0; taker < group.rank(); ++taker) begin += part(rank, taker);
    exchanged.push_back({rank, begin, taken.back()});
  }
  const std::size_t own = counts[static_cast<std::size_t>(group.rank())];
  const std::size_t all = total_of(counts);
  const std::size_t most = count * static_cast<std::size_t>(size);  // ranks register equally much
  auto one = buffer<T, Buffer>(group, where, most);
  auto output = buffer<T, Buffer>(group, where, most);
  group.all_gather_v(one.part(0, own), output.part(0, all), counts);
  expect_bits("all_gather_v", output.values().data(), concatenated<T>(gathered));

  for (const ReduceOp op : ops_for<T>(count)) {
    const T* const wanted = reduced<T>(op, ranks, all) + begin_of(counts, group.rank());
    auto input = buffer<T, Buffer>(group, where, most);
    group.reduce_scatter_v(input.part(0, all), one.part(0, own), counts, op, options_for(op, group.rank()));
    expect_bits("reduce_scatter_v", one.values().data(), wanted, own);
  }

  auto input = buffer<T, Buffer>(group, where, most);
  auto from_all = buffer<T, Buffer>(group, where, most);
  group.all_to_all_v(input.part(0, total_of(given)), given, from_all.part(0, total_of(taken)), taken);
  expect_bits("all_to_all_v", from_all.values().data(), concatenated<T>(exchanged));
}

// In all sizes, to `count_max`, and kinds of memory.
template <class T, template <class> class Buffer>
void check_collectives(ProcessGroup& group,
                       std::size_t count_max = std::max(kCountMax, kBlockBytes / sizeof(T) + 1001)) {
  for (const Where where : {Where::plain, Where::registered, Where::registered_on_rank_0}) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{3}, count_max}) {
      SCOPED_TRACE(std::to_string(count) + " elements, " + name_of(where));
      check_in_place_collectives<T, Buffer>(group, where, count);
      check_gathering_collectives<T, Buffer>(group, where, std::min(count, kCountPerRankMax));
      check_divided_collectives<T, Buffer>(group, where, std::min(count, kCountPerRankMax));
      check_uneven_collectives<T, Buffer>(group, one_host(group), where, std::min(count, kCountPerRankMax / 4));
    }
  }
}

}  // namespace ddp::testing
