// Sends, receives and coalesced calls, which every backend has, bit by bit: the same checks for all backends. `Buffer`
// is that of collective_checks.hpp.
#pragma once

#include <ddp/ddp.hpp>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "tests/integration/collective_checks.hpp"

namespace ddp::testing {

// Each rank in turn sends to the next one, and the last to the first.
template <class T, template <class> class Buffer>
void check_one_after_the_other(ProcessGroup& group, Where where, std::size_t count) {
  const int next = (group.rank() + 1) % group.size();
  const int last = (group.rank() + group.size() - 1) % group.size();
  const auto own = buffer<T, Buffer>(group, where, count);
  auto other = buffer<T, Buffer>(group, where, count);
  if (group.rank() == 0) group.send(own.range(), next);
  group.receive(other.range(), last);
  if (group.rank() != 0) group.send(own.range(), next);
  expect_bits("receive", other.values().data(), count, [&](std::size_t i) { return element<T>(last, i); });
  group.barrier();  // nobody frees what another may still read
}

// In both directions between each two ranks at once, in an order in which none of these calls could wait for another.
template <class T, template <class> class Buffer>
void check_all_at_once(ProcessGroup& group, Where where, std::size_t count) {
  const auto own = buffer<T, Buffer>(group, where, count);
  std::vector<Buffer<T>> from;
  from.reserve(static_cast<std::size_t>(group.size()));
  for (int rank = 0; rank < group.size(); ++rank) from.push_back(buffer<T, Buffer>(group, where, count));
  std::vector<Work> works;
  Work all = group.coalesce([&] {
    for (int peer = 0; peer < group.size(); ++peer) {
      if (peer != group.rank()) works.push_back(group.send_async(own.range(), peer));
    }
    for (int peer = group.size() - 1; peer >= 0; --peer) {
      const auto& buffer_of_peer = from[static_cast<std::size_t>(peer)];
      if (peer != group.rank()) works.push_back(group.receive_async(buffer_of_peer.range(), peer));
    }
  });
  all.wait();
  for (Work& work : works) work.wait();
  for (int peer = 0; peer < group.size(); ++peer) {
    expect_bits("from rank " + std::to_string(peer), from[static_cast<std::size_t>(peer)].values().data(), count,
                [&](std::size_t i) { return element<T>(peer, i); });
  }
  group.barrier();
}

// Several messages from rank 0 to rank 1, of other sizes each, arrive in the order in which they were sent: one by one,
// and as one.
template <class T, template <class> class Buffer>
void check_order(ProcessGroup& group) {
  const std::vector<std::size_t> counts{5, 1, 700, 0, 3, 90'001, 2};
  const int peer = 1 - group.rank();
  for (const bool is_coalesced : {false, true}) {
    SCOPED_TRACE(is_coalesced ? "as one" : "one by one");
    std::vector<Buffer<T>> buffers;
    buffers.reserve(counts.size());
    for (const std::size_t count : counts) buffers.push_back(buffer<T, Buffer>(group, Where::plain, count));
    const auto begin_all = [&] {
      std::vector<Work> works;
      for (auto& each : buffers) {
        if (group.rank() == 0) works.push_back(group.send_async(each.range(), peer));
        if (group.rank() == 1) works.push_back(group.receive_async(each.range(), peer));
      }
      return works;
    };
    std::vector<Work> works;
    if (is_coalesced) {
      group.coalesce([&] { works = begin_all(); }).wait();
    } else {
      works = begin_all();
    }
    for (Work& work : works) work.wait();
    if (group.rank() > 1) continue;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      expect_bits("message " + std::to_string(i), buffers[i].values().data(), counts[i],
                  [&](std::size_t at) { return element<T>(0, at); });
    }
  }
}

// Of at least two ranks. In all sizes and kinds of memory.
template <class T, template <class> class Buffer>
void check_pairs(ProcessGroup& group) {
  check_order<T, Buffer>(group);
  for (const Where where : {Where::plain, Where::registered, Where::registered_on_rank_0}) {
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{13}, std::size_t{997}, kCountPerRankMax}) {
      SCOPED_TRACE(std::to_string(count) + " elements, " + name_of(where));
      check_one_after_the_other<T, Buffer>(group, where, count);
      check_all_at_once<T, Buffer>(group, where, count);
    }
  }
}

// Two ranks that answer each other, message for message.
inline void check_in_turn(ProcessGroup& group, std::int64_t rounds) {
  const int rank = group.rank();
  for (std::int64_t i = 0; i < rounds; ++i) {
    std::vector<std::int64_t> ping{rank == 0 ? i : -1};
    std::vector<std::int64_t> pong{rank == 0 ? -1 : 3 * i};
    rank == 0 ? group.send(ping, 1) : group.receive(ping, 0);
    rank == 0 ? group.receive(pong, 1) : group.send(pong, 0);
    ASSERT_EQ(ping[0], i);
    ASSERT_EQ(pong[0], 3 * i);
  }
}

}  // namespace ddp::testing
