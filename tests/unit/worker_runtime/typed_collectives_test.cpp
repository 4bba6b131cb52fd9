// Collectives of numbers and ranges: ddp/collectives.hpp, and the conversions of MemoryRange.
#include <ddp/collectives.hpp>

#include <ddp/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/unit/worker_runtime/rank_results.hpp"

namespace {

using ddp::ConstMemoryRange;
using ddp::MemoryRange;
using ddp::ProcessGroup;
using ddp::ReduceOp;
using ddp::test::results_of_ranks;
using testing::Each;

template <class Range>
std::string joined(const Range& values) {
  std::string text;
  for (const auto& value : values) text += (text.empty() ? "" : " ") + std::to_string(value);
  return text;
}

// Containers that outlive the call, and views of any lifetime.
static_assert(std::is_convertible_v<std::array<float, 3>&, MemoryRange>);
static_assert(std::is_convertible_v<std::span<float>&, MemoryRange>);
static_assert(std::is_convertible_v<const std::span<float>&, MemoryRange>);
static_assert(std::is_convertible_v<std::span<float>, MemoryRange>);
static_assert(std::is_convertible_v<const std::array<float, 3>&, ConstMemoryRange>);
static_assert(std::is_convertible_v<std::span<const float>, ConstMemoryRange>);
static_assert(std::is_convertible_v<std::span<float>, ConstMemoryRange>);
static_assert(std::is_convertible_v<const std::vector<float>&, ConstMemoryRange>);
static_assert(std::is_convertible_v<std::vector<float>, ConstMemoryRange>);  // as ever; deleted for _async calls
// What would write to something const, or to a temporary, and what is of no type that the library has.
static_assert(!std::is_convertible_v<const std::array<float, 3>&, MemoryRange>);
static_assert(!std::is_convertible_v<std::array<float, 3>, MemoryRange>);
static_assert(!std::is_convertible_v<std::array<float, 3>, ConstMemoryRange>);
static_assert(!std::is_convertible_v<std::span<const float>, MemoryRange>);
static_assert(!std::is_convertible_v<const std::vector<float>&, MemoryRange>);
static_assert(!std::is_convertible_v<std::vector<float>, MemoryRange>);
static_assert(!std::is_convertible_v<std::vector<bool>&, MemoryRange>);
static_assert(!std::is_convertible_v<std::vector<bool>&, ConstMemoryRange>);
static_assert(!std::is_convertible_v<std::string&, MemoryRange>);
static_assert(!std::is_convertible_v<std::array<std::uint64_t, 3>&, MemoryRange>);
static_assert(!std::is_convertible_v<float&, MemoryRange>);

TEST(MemoryRange, ShowsArraysAndSpans) {
  std::array<std::int32_t, 5> numbers{1, 2, 3, 4, 5};
  const MemoryRange whole = numbers;
  EXPECT_EQ(whole.data, numbers.data());
  EXPECT_EQ(whole.count, 5U);
  EXPECT_EQ(whole.type, ddp::DataType::int32);
  const ConstMemoryRange part = std::span(numbers).subspan(1, 3);
  EXPECT_EQ(part.data, numbers.data() + 1);
  EXPECT_EQ(part.count, 3U);
}

TEST(MemoryRange, GivesItsElementsInItsTypeOnly) {
  std::array<double, 3> numbers{1, 2, 3};
  const MemoryRange whole = numbers;
  const auto elements = whole.as<double>();
  const std::span<double> as_span = elements;
  EXPECT_EQ(as_span.data(), numbers.data());
  EXPECT_EQ(as_span.size(), 3U);
  double sum = 0;
  for (double& number : whole.as<double>()) sum += std::exchange(number, 0);
  EXPECT_EQ(sum, 6);
  EXPECT_EQ(numbers[2], 0);
  try {
    static_cast<void>(whole.as<float>());
    FAIL();
  } catch (const ddp::InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "elements of type float64 were asked for as float32");
  }
}

TEST(TypedCollectives, ReduceNumbers) {
  for (int size = 1; size <= 4; ++size) {
    const auto results = results_of_ranks(size, [](ProcessGroup world) {
      const int rank = world.rank();
      return std::to_string(ddp::all_reduce(world, rank + 1)) + "|" +
             std::to_string(ddp::all_reduce(world, 0.5 * rank, ReduceOp::max)) + "|" +
             std::to_string(ddp::all_reduce(world, 4.0F * static_cast<float>(rank), ReduceOp::average)) + "|" +
             std::to_string(ddp::all_reduce(world, std::int64_t{1} << 40, ReduceOp::min)) + "|" +
             std::to_string(ddp::all_reduce(world, rank == 0, ReduceOp::min));
    });
    const std::string sum = std::to_string(size * (size + 1) / 2);
    EXPECT_THAT(results, Each(sum + "|" + std::to_string(0.5 * (size - 1)) + "|" + std::to_string(2.0 * (size - 1)) +
                              "|1099511627776|" + (size == 1 ? "1" : "0")));
  }
}

TEST(TypedCollectives, ReduceRangesInPlace) {
  for (int size = 1; size <= 4; ++size) {
    const auto results = results_of_ranks(size, [](ProcessGroup world) {
      std::vector<float> vector{1, 2};
      std::array<std::int64_t, 3> array{3, 4, 5};
      std::array<double, 4> spanned{6, 7, 8, 9};
      ddp::all_reduce(world, vector);
      ddp::all_reduce(world, array);
      ddp::all_reduce(world, std::span(spanned).first(2));
      const std::span<double> last = std::span(spanned).last(1);
      ddp::all_reduce(world, last, ReduceOp::product);
      world.all_reduce(array, ReduceOp::max);  // the group's own calls take them too
      return joined(vector) + "|" + joined(array) + "|" + joined(spanned);
    });
    double power = 1;
    for (int i = 0; i < size; ++i) power *= 9;
    EXPECT_THAT(results, Each(joined(std::vector<float>{1.0F * size, 2.0F * size}) + "|" +
                              joined(std::array{3 * size, 4 * size, 5 * size}) + "|" +
                              joined(std::array{6.0 * size, 7.0 * size, 8.0, power})));
  }
}

TEST(TypedCollectives, Broadcast) {
  for (int size = 1; size <= 4; ++size) {
    const auto results = results_of_ranks(size, [](ProcessGroup world) {
      const int last = world.size() - 1;
      std::vector<std::int32_t> vector{world.rank(), 5};
      std::array<std::uint8_t, 2> array{static_cast<std::uint8_t>(world.rank()), 9};
      ddp::broadcast(world, vector, last);
      ddp::broadcast(world, array, last);
      ddp::broadcast(world, std::span(vector).last(1), 0);
      return std::to_string(ddp::broadcast(world, 10 * world.rank(), last)) + "|" + joined(vector) + "|" +
             joined(array);
    });
    const std::string last = std::to_string(size - 1);
    EXPECT_THAT(results, Each(std::to_string(10 * (size - 1)) + "|" + last + " 5|" + last + " 9"));
  }
}

TEST(TypedCollectives, Gather) {
  for (int size = 1; size <= 4; ++size) {
    const auto results = results_of_ranks(size, [](ProcessGroup world) {
      const int rank = world.rank();
      const std::vector<std::int32_t> vector{rank, -rank};
      const std::array<float, 1> array{0.5F * static_cast<float>(rank)};
      return joined(ddp::all_gather(world, rank)) + "|" + joined(ddp::all_gather(world, vector)) + "|" +
             joined(ddp::all_gather(world, array)) + "|" + joined(ddp::all_gather(world, std::span(vector).first(1))) +
             "|" + joined(ddp::all_gather(world, std::array<double, 1>{1}));
    });
    std::vector<std::int32_t> ranks;
    std::vector<std::int32_t> pairs;
    std::vector<float> halves;
    for (int rank = 0; rank < size; ++rank) {
      ranks.push_back(rank);
      pairs.insert(pairs.end(), {rank, -rank});
      halves.push_back(0.5F * static_cast<float>(rank));
    }
    EXPECT_THAT(results, Each(joined(ranks) + "|" + joined(pairs) + "|" + joined(halves) + "|" + joined(ranks) + "|" +
                              joined(std::vector<double>(static_cast<std::size_t>(size), 1))));
  }
}

TEST(TypedCollectives, AreRefusedAsTheGroupsOwn) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    EXPECT_THROW(ddp::broadcast(world, 1, 2), ddp::InvalidArgument);
    EXPECT_THROW(ddp::all_reduce(world, true, ReduceOp::average), ddp::InvalidArgument);
    return std::to_string(ddp::all_reduce(world, 1));  // the group is still usable
  });
  EXPECT_THAT(results, Each("2"));
}

TEST(TypedRanges, ASpanHasTheDeviceOfItsRangeAndGivesItBack) {
  float values[] = {1, 2, 3};
  const ddp::Device gpu{ddp::Device::Kind::cuda, 3};
  const MemoryRange range(values, 3, ddp::DataType::float32, gpu);
  const ddp::Span<float> span = range.as<float>();
  const ddp::Span<const float> reads = span;
  EXPECT_EQ(span.device(), gpu);
  EXPECT_EQ(reads.device(), gpu);
  EXPECT_EQ(range.as<const float>().device(), gpu);
  EXPECT_EQ(ConstMemoryRange(range).as<float>().data(), values);
  EXPECT_EQ(ConstMemoryRange(range).as<float>().device(), gpu);
  EXPECT_EQ(MemoryRange(span).device, gpu);
  EXPECT_EQ(ConstMemoryRange(span).device, gpu);
  EXPECT_EQ(ConstMemoryRange(reads).device, gpu);
  EXPECT_EQ(MemoryRange(values, 3).as<float>().device(), ddp::Device{});
  static_assert(std::is_same_v<decltype(reads[0]), const float&>);
  static_assert(!std::is_convertible_v<ddp::Span<const float>, ddp::Span<float>>);
  static_assert(!std::is_constructible_v<MemoryRange, ddp::Span<const float>>);
  EXPECT_THROW(static_cast<void>(range.as<const double>()), ddp::InvalidArgument);
}

}  // namespace
