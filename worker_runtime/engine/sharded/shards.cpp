#include "worker_runtime/engine/sharded/shards.hpp"

#include <algorithm>
#include <numeric>

namespace ddp::gradient_engine {
namespace {

// By parameters and their elements.
std::vector<std::size_t> sorted(const std::vector<Piece>& pieces) {
  std::vector<std::size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const Piece &one = pieces[a], &other = pieces[b];
    return one.parameter != other.parameter ? one.parameter < other.parameter : one.first < other.first;
  });
  return order;
}

}  // namespace

std::vector<Piece> pieces_of(const std::vector<GradientBucket>& buckets, int rank_count) {
  std::vector<Piece> pieces;
  for (const GradientBucket& bucket : buckets) {
    const std::size_t part = bucket.padded.count / static_cast<std::size_t>(rank_count);
    const std::size_t element_bytes = size_of(bucket.padded.type);
    const auto* const start = static_cast<const std::byte*>(bucket.padded.data);
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      const MemoryRange& gradient = bucket.parameters[i].values;
      const auto begin = static_cast<std::size_t>(static_cast<const std::byte*>(gradient.data) - start) / element_bytes;
      for (std::size_t first = 0; first < gradient.count;) {
        const std::size_t at = begin + first;
        const std::size_t count = std::min(gradient.count - first, part - at % part);
        pieces.push_back({bucket.number, bucket.indices[i], first, count, static_cast<int>(at / part), at % part});
        first += count;
      }
    }
  }
  return pieces;
}

std::vector<Move> moves_between(const std::vector<Piece>& before, const std::vector<Piece>& after) {
  const std::vector<std::size_t> old_order = sorted(before), new_order = sorted(after);
  std::vector<Move> moves;
  for (std::size_t i = 0, j = 0; i < old_order.size() && j < new_order.size();) {
    const Piece &from = before[old_order[i]], &to = after[new_order[j]];
    if (from.parameter != to.parameter) {
      from.parameter < to.parameter ? ++i : ++j;
      continue;
    }
    const std::size_t first = std::max(from.first, to.first);
    const std::size_t end = std::min(from.first + from.count, to.first + to.count);
    if (first < end) {
      moves.push_back({old_order[i], new_order[j], first - from.first, first - to.first, end - first});
    }
    from.first + from.count <= to.first + to.count ? ++i : ++j;
  }
  return moves;
}

}  // namespace ddp::gradient_engine
