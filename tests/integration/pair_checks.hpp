// Sends, receives and coalesced calls, which every backend has, bit by bit: the same checks for all backends. `Buffer`
// is that of collective_checks.hpp.
#pragma once

#include <ddp/ddp.hpp>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <utility>
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
  expect_bits("receive", other.values().data(), elements<T>(last, count), count);
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
    expect_bits("from rank " + std::to_string(peer), from[static_cast<std::size_t>(peer)].values().data(),
                elements<T>(peer, count), count);
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
      expect_bits("message " + std::to_string(i), buffers[i].values().data(), elements<T>(0, counts[i]), counts[i]);
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

// Between ranks 0 and 1 of a group that has tags: messages are received in another order than they are sent in, one by
// one, and as one, where they are more than a rank keeps.
inline void check_tags(ProcessGroup& group) {
  const int peer = 1 - group.rank();
  const auto value = [](int tag, std::size_t i) { return static_cast<float>(1000 * tag + static_cast<int>(i % 1000)); };
  const auto message = [&](int tag, std::size_t count) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = value(tag, i);
    return values;
  };
  const auto receive = [&](int tag, std::size_t count) {
    std::vector<float> values(count, -1);
    group.receive(values, peer, {.tag = tag});
    ASSERT_EQ(values, message(tag, count)) << "tag " << tag;
  };
  if (group.rank() == 0) {
    for (const auto& [tag, count] : {std::pair(1, 3), {2, 1'000'000}, {0, 0}, {2, 5}, {7, 5'000}, {3, 40}}) {
      group.send(message(tag, static_cast<std::size_t>(count)), peer, {.tag = tag});
    }
  } else if (group.rank() == 1) {
    receive(3, 40);
    receive(7, 5'000);
    receive(0, 0);
    receive(2, 1'000'000);
    receive(2, 5);
    receive(1, 3);
  }
  constexpr std::size_t kLarge = 9'000'000;  // 36 MB
  std::vector<std::vector<float>> values;
  for (const int tag : {4, 5, 6}) values.push_back(group.rank() == 0 ? message(tag, kLarge) : message(0, kLarge));
  group
      .coalesce([&] {
        for (const int tag : group.rank() == 0 ? std::vector{4, 5, 6} : std::vector{6, 4, 5}) {
          auto& of_tag = values[static_cast<std::size_t>(tag - 4)];
          if (group.rank() == 0) static_cast<void>(group.send_async(of_tag, peer, {.tag = tag}));
          if (group.rank() == 1) static_cast<void>(group.receive_async(of_tag, peer, {.tag = tag}));
        }
      })
      .wait();
  for (const int tag : {4, 5, 6}) {
    const auto& of_tag = values[static_cast<std::size_t>(tag - 4)];
    for (std::size_t i = 0; group.rank() < 2 && i < kLarge; i += 97) ASSERT_EQ(of_tag[i], value(tag, i)) << tag;
  }
}

// Rank 0 receives from whoever sends first; messages of another tag stand before these.
inline void check_receive_from_any(ProcessGroup& group) {
  constexpr std::int64_t kRounds = 50;
  if (group.rank() > 0) {
    for (std::int64_t i = 0; i < kRounds; ++i) {
      const std::vector<std::int64_t> before{-i}, own(i == 7 ? 300'000 : 2, i);
      group.send(before, 0, {.tag = 8});
      group.send(std::vector<std::int64_t>{static_cast<std::int64_t>(own.size())}, 0, {.tag = 9});
      group.send(own, 0, {.tag = 10});
    }
    return;
  }
  std::vector<std::int64_t> next(static_cast<std::size_t>(group.size()), 0);
  for (std::int64_t i = 0; i < kRounds * (group.size() - 1); ++i) {
    std::vector<std::int64_t> count(1);
    int source = -1;
    if (i % 3 == 0) {
      group.receive_from_any_async(count, &source, {.tag = 9}).wait();
    } else {
      source = group.receive_from_any(count, {.tag = 9});
    }
    ASSERT_GT(source, 0);
    ASSERT_LT(source, group.size());
    std::vector<std::int64_t> values(static_cast<std::size_t>(count[0]));
    group.receive(values, source, {.tag = 10});
    const std::int64_t wanted = next[static_cast<std::size_t>(source)]++;
    ASSERT_EQ(values, std::vector<std::int64_t>(wanted == 7 ? 300'000 : 2, wanted));
  }
  for (int rank = 1; rank < group.size(); ++rank) {
    for (std::int64_t i = 0; i < kRounds; ++i) {
      std::vector<std::int64_t> before(1);
      group.receive(before, rank, {.tag = 8});
      ASSERT_EQ(before[0], -i);
    }
  }
}

}  // namespace ddp::testing
