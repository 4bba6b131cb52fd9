#include "worker_runtime/cpu_backend/reduce.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

namespace ddp::cpu_backend {
namespace {

const DataType kTypes[] = {DataType::float32, DataType::float64, DataType::int64};

TEST(Slices, CoverARangeWithoutOverlapAndShareNoCacheLine) {
  for (const DataType type : kTypes) {
    const std::size_t line = kCacheLineBytes / size_of(type);
    for (const int parts : {1, 2, 3, 8, 100}) {
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, line, line + 1, std::size_t{1'000'003}}) {
        SCOPED_TRACE(std::to_string(count) + " " + name_of(type) + " in " + std::to_string(parts));
        std::size_t end = 0;
        for (int part = 0; part < parts; ++part) {
          const Slice slice = slice_of(count, type, part, parts);
          EXPECT_EQ(slice.begin, end);
          EXPECT_GE(slice.end, slice.begin);
          EXPECT_TRUE(slice.begin % line == 0 || slice.begin == count);
          EXPECT_LE(slice.end - slice.begin, count / static_cast<std::size_t>(parts) + 2 * line);
          end = slice.end;
        }
        EXPECT_EQ(end, count);
      }
    }
  }
}

// Any bits but those of a NaN, whose payload may depend on the order of operands.
template <class T>
T random_value(std::mt19937_64& random) {
  T value{};
  do {
    const std::uint64_t bits = random();
    std::memcpy(&value, &bits, sizeof(value));
  } while (value != value || (std::is_floating_point_v<T> && (value > T(1e30) || value < T(-1e30))));
  return value;
}

template <class T>
T plain(ReduceOp op, const std::vector<std::vector<T>>& sources, std::size_t i) {
  if constexpr (std::is_same_v<T, std::int64_t>) {
    std::uint64_t sum = 0;
    for (const auto& source : sources) sum += static_cast<std::uint64_t>(source[i]);
    const auto wrapped = static_cast<std::int64_t>(sum);
    return op == ReduceOp::sum ? wrapped : wrapped / static_cast<std::int64_t>(sources.size());
  } else {
    T sum = sources[0][i];
    for (std::size_t s = 1; s < sources.size(); ++s) sum += sources[s][i];
    return op == ReduceOp::sum ? sum : sum / static_cast<T>(sources.size());
  }
}

template <class T>
class Reduce : public ::testing::Test {};
using Types = ::testing::Types<float, double, std::int64_t>;
TYPED_TEST_SUITE(Reduce, Types);

TYPED_TEST(Reduce, EqualsASlowPlainOneInPlaceAndLeavesTheRestAlone) {
  std::mt19937_64 random(20261121);
  for (int trial = 0; trial < 60; ++trial) {
    const std::size_t ranks = 1 + random() % 5;
    const std::size_t count = random() % 5000;
    std::vector<std::vector<TypeParam>> values(ranks, std::vector<TypeParam>(count));
    for (auto& of_rank : values) {
      for (TypeParam& value : of_rank) value = random_value<TypeParam>(random);
    }
    const std::size_t begin = count == 0 ? 0 : random() % count;
    const std::size_t end = begin + random() % (count - begin + 1);
    const ReduceOp op = trial % 2 == 0 ? ReduceOp::sum : ReduceOp::average;

    auto result = values;
    std::vector<std::byte*> memory;
    for (auto& of_rank : result) memory.push_back(reinterpret_cast<std::byte*>(of_rank.data()));
    const std::vector<const std::byte*> sources(memory.begin(), memory.end());
    reduce({DataTypeOf<TypeParam>::value, op, sources.size()}, sources, memory, {begin, end});

    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (std::size_t i = 0; i < count; ++i) {
        const TypeParam want = i >= begin && i < end ? plain(op, values, i) : values[rank][i];
        ASSERT_EQ(std::memcmp(&result[rank][i], &want, sizeof(want)), 0) << "trial " << trial << ", element " << i;
      }
    }
  }
}

TEST(ReduceIntegers, WrapAroundAndRoundTowardsZero) {
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
  const std::vector<std::int64_t> a{kMax, -3, kMin, 3};
  const std::vector<std::int64_t> b{1, 0, -1, 0};
  const std::vector<const std::byte*> sources{reinterpret_cast<const std::byte*>(a.data()),
                                              reinterpret_cast<const std::byte*>(b.data())};
  std::vector<std::int64_t> result(4);
  const std::vector<std::byte*> destinations{reinterpret_cast<std::byte*>(result.data())};
  reduce({DataType::int64, ReduceOp::sum, sources.size()}, sources, destinations, {0, 4});
  EXPECT_EQ(result, (std::vector<std::int64_t>{kMin, -3, kMax, 3}));
  reduce({DataType::int64, ReduceOp::average, sources.size()}, sources, destinations, {0, 4});
  EXPECT_EQ(result, (std::vector<std::int64_t>{kMin / 2, -1, kMax / 2, 1}));
}

}  // namespace
}  // namespace ddp::cpu_backend
