// What holds for every sampler, checked on random sizes: ranks are disjoint, each place of an epoch's order is taken
// once, and a run that goes on with another number of ranks repeats and leaves out nothing.
#pragma once

#include <ddp/sampling.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace ddp::test {

using Indices = std::vector<std::int64_t>;

// Random numbers that are the same with every standard library.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::size_t from_to(std::size_t least, std::size_t most) { return least + engine_() % (most - least + 1); }
  bool coin() { return from_to(0, 1) == 1; }

 private:
  std::mt19937_64 engine_;
};

inline Indices counted_up(std::size_t count) {
  Indices all(count);
  std::iota(all.begin(), all.end(), std::int64_t{0});
  return all;
}

inline Indices sorted(Indices indices) {
  std::sort(indices.begin(), indices.end());
  return indices;
}

// The order from a position on, put together from the ranks' shares: place i is with rank i % replicas. `make` gives
// the sampler of (replicas, rank). With Tail::pad the padding is at its end.
template <class Make>
Indices order_from(const Make& make, const SamplerPosition& from, int replicas) {
  std::vector<Indices> shares;
  std::size_t count = 0;
  for (int rank = 0; rank < replicas; ++rank) {
    shares.push_back(make(replicas, rank).indices(from));
    count += shares.back().size();
  }
  Indices order;
  for (std::size_t i = 0; i < count; ++i) {
    const Indices& share = shares[i % shares.size()];
    const std::size_t place = i / shares.size();
    if (place >= share.size()) {
      ADD_FAILURE() << "rank " << i % shares.size() << " has only " << share.size() << " of " << count;
      return {};
    }
    order.push_back(share[place]);
  }
  return order;
}

// Checks the epoch's order for one number of ranks against `tail`'s rule, given the order itself.
template <class Make>
void expect_shares_of(const Indices& order, const Make& make, const SamplerPosition& from, int replicas, Tail tail) {
  const std::size_t rest = order.size() - from.taken;
  const auto ranks = static_cast<std::size_t>(replicas);
  Indices want(order.begin() + static_cast<std::ptrdiff_t>(from.taken), order.end());
  if (tail == Tail::drop) want.resize(rest / ranks * ranks);
  if (tail == Tail::pad) {
    for (std::size_t i = 0; want.size() % ranks != 0; ++i) want.push_back(order[i % order.size()]);
  }
  ASSERT_EQ(order_from(make, from, replicas), want) << replicas << " ranks from " << from.taken;
}

// Goes through an epoch with a number of ranks that changes at random, and returns what was taken, in order. No
// segment but the last runs into the end of the epoch, so `tail` has no part in it.
template <class Make>
Indices taken_with_changing_ranks(const Make& make, SamplerPosition position, Dice& dice) {
  Indices taken;
  while (position.taken < position.sample_count) {
    const auto replicas = static_cast<int>(dice.from_to(1, 6));
    const std::size_t rest = position.sample_count - position.taken;
    const std::size_t per_rank = rest / static_cast<std::size_t>(replicas);
    if (per_rank == 0) continue;  // with one rank there always is one
    const std::size_t count = dice.from_to(1, per_rank);
    const Indices order = order_from(make, position, replicas);
    const SamplerPosition after = make(replicas, 0).after(position, count);
    for (int rank = 1; rank < replicas; ++rank) EXPECT_EQ(make(replicas, rank).after(position, count), after);
    EXPECT_EQ(after.taken - position.taken, count * static_cast<std::size_t>(replicas));
    taken.insert(taken.end(), order.begin(), order.begin() + static_cast<std::ptrdiff_t>(after.taken - position.taken));
    position = after;
  }
  return taken;
}

}  // namespace ddp::test
