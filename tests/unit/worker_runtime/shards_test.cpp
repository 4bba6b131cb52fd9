#include "worker_runtime/engine/sharded/shards.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace ddp::gradient_engine {
namespace {

using ::testing::ElementsAre;

std::array<float, 64> memory;

// A bucket of `padded` elements from `first` of the memory on, with these parameters: {index, offset, count}.
struct Laid {
  std::size_t index, offset, count;
};
GradientBucket bucket_of(std::size_t number, std::size_t first, std::size_t padded, const std::vector<Laid>& laid) {
  GradientBucket bucket;
  bucket.number = number;
  bucket.padded = {memory.data() + first, padded, DataType::float32};
  for (const Laid& each : laid) {
    bucket.indices.push_back(each.index);
    bucket.parameters.push_back({"p", {}, {memory.data() + first + each.offset, each.count, DataType::float32}});
  }
  return bucket;
}

std::vector<std::string> texts(const std::vector<Piece>& pieces) {
  std::vector<std::string> all;
  for (const Piece& each : pieces) {
    all.push_back("bucket " + std::to_string(each.bucket) + " parameter " + std::to_string(each.parameter) + " [" +
                  std::to_string(each.first) + ", " + std::to_string(each.first + each.count) + ") of rank " +
                  std::to_string(each.owner) + " at " + std::to_string(each.offset));
  }
  return all;
}

TEST(Shards, APieceIsWhatOneRankOwnsOfAParameter) {
  const std::vector<GradientBucket> buckets{bucket_of(0, 0, 24, {{2, 0, 5}, {1, 8, 10}, {3, 20, 0}}),
                                            bucket_of(1, 24, 6, {{0, 0, 3}})};
  EXPECT_THAT(texts(pieces_of(buckets, 3)),
              ElementsAre("bucket 0 parameter 2 [0, 5) of rank 0 at 0", "bucket 0 parameter 1 [0, 8) of rank 1 at 0",
                          "bucket 0 parameter 1 [8, 10) of rank 2 at 0", "bucket 1 parameter 0 [0, 2) of rank 0 at 0",
                          "bucket 1 parameter 0 [2, 3) of rank 1 at 0"));
  EXPECT_THAT(texts(pieces_of(buckets, 1)),
              ElementsAre("bucket 0 parameter 2 [0, 5) of rank 0 at 0", "bucket 0 parameter 1 [0, 10) of rank 0 at 8",
                          "bucket 1 parameter 0 [0, 3) of rank 0 at 0"));
}

TEST(Shards, MovesCoverEachElementOnce) {
  const std::vector<GradientBucket> before{bucket_of(0, 0, 24, {{2, 0, 5}, {1, 8, 10}}),
                                           bucket_of(1, 24, 6, {{0, 0, 3}})};
  const std::vector<GradientBucket> after{bucket_of(0, 0, 8, {{0, 0, 3}, {2, 3, 5}}),
                                          bucket_of(1, 8, 12, {{1, 1, 10}})};
  const auto old_pieces = pieces_of(before, 3), new_pieces = pieces_of(after, 2);
  std::vector<std::vector<int>> moved{std::vector<int>(3), std::vector<int>(10), std::vector<int>(5)};
  for (const Move& move : moves_between(old_pieces, new_pieces)) {
    const Piece &from = old_pieces[move.from], &to = new_pieces[move.to];
    ASSERT_EQ(from.parameter, to.parameter);
    ASSERT_EQ(from.first + move.from_first, to.first + move.to_first);
    ASSERT_LE(move.from_first + move.count, from.count);
    ASSERT_LE(move.to_first + move.count, to.count);
    for (std::size_t i = 0; i < move.count; ++i) ++moved[from.parameter][from.first + move.from_first + i];
  }
  for (const auto& of_one : moved) EXPECT_THAT(of_one, ::testing::Each(1));
}

}  // namespace
}  // namespace ddp::gradient_engine
