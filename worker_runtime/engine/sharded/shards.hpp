// Which elements of which parameters each rank owns, if buckets are divided evenly among the ranks.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <vector>

#include "ddp/communication_hook.hpp"

namespace ddp::gradient_engine {

// Consecutive elements of one parameter that one rank owns.
struct Piece {
  std::size_t bucket = 0;
  std::size_t parameter = 0;  // index in the model
  std::size_t first = 0;      // element of the parameter
  std::size_t count = 0;
  int owner = 0;
  std::size_t offset = 0;  // from the start of the owner's part of the bucket, in elements
};

// In the order of buckets, and of the elements in them. rank_count 1: whole parameters, of rank 0.
std::vector<Piece> pieces_of(const std::vector<GradientBucket>& buckets, int rank_count);

// Elements that go from a piece of an old division to a piece of a new one.
struct Move {
  std::size_t from = 0;  // index of the piece in the old list, and in the new one
  std::size_t to = 0;
  std::size_t from_first = 0;  // elements from the start of each
  std::size_t to_first = 0;
  std::size_t count = 0;
};

// Of the same parameters, in the order of parameters and their elements.
std::vector<Move> moves_between(const std::vector<Piece>& before, const std::vector<Piece>& after);

}  // namespace ddp::gradient_engine
