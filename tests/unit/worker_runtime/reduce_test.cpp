#include "worker_runtime/backends/cpu/reduce/reduce.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/plain_reduction.hpp"
#include "worker_runtime/tensor/scalar.hpp"

namespace ddp::cpu_backend {
namespace {

using tensor::Bfloat16;
using tensor::Float16;
using tensor::to_bfloat16;
using tensor::to_float;
using tensor::to_float16;
using testing::Boolean;
using testing::combined;
using testing::divided;
using testing::Float8E4m3fn;
using testing::Float8E5m2;
using testing::kIsBoolean;
using testing::narrowed;
using testing::Wide;
using testing::widened;

const DataType kTypes[] = {DataType::float32,  DataType::float64,       DataType::int64,      DataType::float16,
                           DataType::bfloat16, DataType::int32,         DataType::uint8,      DataType::int8,
                           DataType::boolean,  DataType::float8_e4m3fn, DataType::float8_e5m2};
const ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::average, ReduceOp::product, ReduceOp::min, ReduceOp::max};

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

template <class T>
T from_bits(std::uint64_t bits) {
  T value{};
  std::memcpy(static_cast<void*>(&value), &bits, sizeof(value));
  return value;
}

// NaN, infinities, zeros, the smallest and largest of all kinds, and a few plain ones.
template <class T>
std::vector<T> special_values() {
  std::vector<T> values;
  if constexpr (kIsBoolean<T>) {
    return {{0}, {1}};
  } else if constexpr (std::is_integral_v<T>) {
    for (const int small : {0, 1, 2, 3}) values.push_back(static_cast<T>(small));
    values.push_back(static_cast<T>(-1));
    values.push_back(std::numeric_limits<T>::max());
    values.push_back(std::numeric_limits<T>::min());
  } else {
    using Limits = std::numeric_limits<Wide<T>>;
    for (const Wide<T> value :
         {Wide<T>(0), Wide<T>(1), Wide<T>(1.5), Limits::quiet_NaN(), Limits::infinity(), Limits::max(), Limits::min(),
          Limits::denorm_min(), Wide<T>(65504), Wide<T>(65503), Wide<T>(6e-8)}) {
      values.push_back(narrowed<T>(value));
      values.push_back(narrowed<T>(-value));
    }
  }
  return values;
}

// Mostly any bits, which for floating point are mostly of very different sizes; often special ones; else near each
// other.
template <class T>
T random_value(std::mt19937_64& random) {
  static const std::vector<T> special = special_values<T>();
  if constexpr (kIsBoolean<T>) return special[random() % 2];
  switch (random() % 4) {
    case 0: return special[random() % special.size()];
    case 1: return narrowed<T>(static_cast<Wide<T>>(static_cast<double>(random() % 100'000) / 1000.0));
    default: return from_bits<T>(random());
  }
}

// A result: of what is NaN there is one.
template <class T>
T with_one_nan(T value) {
  return testing::is_nan(widened(value)) ? narrowed<T>(std::numeric_limits<Wide<T>>::quiet_NaN()) : value;
}

template <class T>
bool same_bits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

// The instructions that this machine has.
std::vector<Instructions> instructions_here() {
  std::vector<Instructions> here;
  for (const Instructions one : {Instructions::baseline, Instructions::avx2, Instructions::avx512}) {
    if (has(one)) here.push_back(one);
  }
  return here;
}

std::string name_of(Instructions one) {
  return one == Instructions::avx512 ? "avx512" : one == Instructions::avx2 ? "avx2" : "baseline";
}

// Booleans have no average.
template <class T>
ReduceOp op_of(int trial) {
  const ReduceOp op = kOps[trial % 5];
  return kIsBoolean<T> && op == ReduceOp::average ? ReduceOp::max : op;
}

template <class T>
using Values = std::vector<std::vector<T>>;  // by rank

template <class T>
Values<T> random_values(std::mt19937_64& random, std::size_t ranks, std::size_t count) {
  Values<T> values(ranks, std::vector<T>(count));
  for (auto& of_rank : values) {
    for (T& value : of_rank) value = random_value<T>(random);
  }
  return values;
}

// Over ranks [begin, end), not divided.
template <class T>
Wide<T> plain(ReduceOp op, const Values<T>& sources, std::size_t begin, std::size_t end, std::size_t i) {
  Wide<T> result = widened(sources[begin][i]);
  for (std::size_t s = begin + 1; s < end; ++s) result = combined(op, result, widened(sources[s][i]));
  return result;
}

template <class T>
std::vector<std::byte*> pointers_to(Values<T>& values) {
  std::vector<std::byte*> pointers;
  for (auto& of_rank : values) pointers.push_back(reinterpret_cast<std::byte*>(of_rank.data()));
  return pointers;
}

template <class T>
std::vector<const std::byte*> const_pointers_to(Values<T>& values) {
  const auto pointers = pointers_to(values);
  return {pointers.begin(), pointers.end()};
}

template <class T>
class Reduce : public ::testing::Test {};
using Types = ::testing::Types<float, double, std::int64_t, Float16, Bfloat16, std::int32_t, std::uint8_t, std::int8_t,
                               Boolean, Float8E4m3fn, Float8E5m2>;
TYPED_TEST_SUITE(Reduce, Types);

// Counts and slices of all sizes, so that each begins and ends anywhere in a vector.
TYPED_TEST(Reduce, EqualsASlowPlainOneInPlaceAndLeavesTheRestAlone) {
  std::mt19937_64 random(20261121);
  for (int trial = 0; trial < 200; ++trial) {
    const std::size_t ranks = 1 + random() % 5;
    const std::size_t count = random() % (trial % 4 == 0 ? 6000 : 300);
    const ReduceOp op = op_of<TypeParam>(trial);
    const auto values = random_values<TypeParam>(random, ranks, count);
    const std::size_t begin = count == 0 ? 0 : random() % count;
    const std::size_t end = begin + random() % (count - begin + 1);
    std::vector<TypeParam> want;
    for (std::size_t i = begin; i < end; ++i) {
      want.push_back(with_one_nan(narrowed<TypeParam>(divided(op, plain(op, values, 0, ranks, i), ranks))));
    }

    for (const Instructions one : instructions_here()) {
      auto result = values;
      const auto memory = pointers_to(result);
      reduce_with(one, {DataTypeOf<TypeParam>::value, op, ranks}, const_pointers_to(result), memory, {begin, end});
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        for (std::size_t i = 0; i < count; ++i) {
          const bool is_inside = i >= begin && i < end;
          ASSERT_TRUE(same_bits(result[rank][i], is_inside ? want[i - begin] : values[rank][i]))
              << name_of(one) << ", trial " << trial << ", element " << i << " of [" << begin << ", " << end << ")";
        }
      }
    }
  }
}

// Elsewhere, to any number of destinations, from any number of sources.
TYPED_TEST(Reduce, EqualsASlowPlainOneToOtherMemory) {
  std::mt19937_64 random(20261123);
  for (int trial = 0; trial < 100; ++trial) {
    const std::size_t ranks = trial % 20 == 0 ? 17 : 1 + random() % 4;
    const std::size_t destinations = random() % 4;
    const std::size_t count = 1 + random() % 400;
    const ReduceOp op = op_of<TypeParam>(trial);
    auto values = random_values<TypeParam>(random, ranks, count);
    const auto before = random_values<TypeParam>(random, destinations, count);
    const std::size_t begin = random() % count;
    for (const Instructions one : instructions_here()) {
      auto result = before;
      reduce_with(one, {DataTypeOf<TypeParam>::value, op, ranks}, const_pointers_to(values), pointers_to(result),
                  {begin, count});
      for (const auto& of_one : result) {
        for (std::size_t i = begin; i < count; ++i) {
          const auto want = narrowed<TypeParam>(divided(op, plain(op, values, 0, ranks, i), ranks));
          ASSERT_TRUE(same_bits(of_one[i], with_one_nan(want)))
              << name_of(one) << ", trial " << trial << ", element " << i;
        }
      }
    }
  }
}

// As two hosts do it: each puts its own ranks together, then one of them what came of that, where its own lies.
TYPED_TEST(Reduce, InTwoStepsEqualsASlowPlainOne) {
  std::mt19937_64 random(20261122);
  for (int trial = 0; trial < 100; ++trial) {
    const std::size_t ranks = 2 + random() % 4;
    const std::size_t border = 1 + random() % (ranks - 1);
    const std::size_t count = 1 + random() % (trial % 4 == 0 ? 3000 : 200);
    const ReduceOp op = op_of<TypeParam>(trial);
    const DataType type = DataTypeOf<TypeParam>::value;
    auto values = random_values<TypeParam>(random, ranks, count);
    const auto sources = const_pointers_to(values);
    std::vector<TypeParam> want;
    for (std::size_t i = 0; i < count; ++i) {
      const auto of_all = combined(op, plain(op, values, 0, border, i), plain(op, values, border, ranks, i));
      want.push_back(with_one_nan(narrowed<TypeParam>(divided(op, of_all, ranks))));
    }

    for (const Instructions one : instructions_here()) {
      using Accumulator = std::conditional_t<kIsBoolean<TypeParam>, TypeParam, Wide<TypeParam>>;
      Values<Accumulator> hosts(2, std::vector<Accumulator>(count));
      const auto of_hosts = pointers_to(hosts);
      const std::span<const std::byte* const> all = sources;
      reduce_with(one, {type, op, ranks, Stage::partial}, all.first(border), {&of_hosts[0], 1}, {0, count});
      reduce_with(one, {type, op, ranks, Stage::partial}, all.subspan(border), {&of_hosts[1], 1}, {0, count});
      const std::vector<const std::byte*> partial(of_hosts.begin(), of_hosts.end());
      reduce_with(one, {type, op, ranks, Stage::total}, partial, {&of_hosts[1], 1}, {0, count});
      for (std::size_t i = 0; i < count; ++i) {
        TypeParam have{};
        std::memcpy(static_cast<void*>(&have), of_hosts[1] + i * sizeof(TypeParam), sizeof(have));
        ASSERT_TRUE(same_bits(have, want[i])) << name_of(one) << ", trial " << trial << ", element " << i;
      }
    }
  }
}

template <class T>
class ReduceNarrowTypes : public ::testing::Test {};
using NarrowTypes = ::testing::Types<Float16, Bfloat16, Float8E4m3fn, Float8E5m2>;
TYPED_TEST_SUITE(ReduceNarrowTypes, NarrowTypes);

template <class T>
constexpr std::uint32_t kPatterns = 1u << (8 * sizeof(T));

// From a number to the middle between it and the next one, in the bits of a float.
template <class T>
constexpr std::uint32_t kMiddle = std::is_same_v<T, Float16>        ? 1u << 12
                                  : std::is_same_v<T, Bfloat16>     ? 1u << 15
                                  : std::is_same_v<T, Float8E4m3fn> ? 1u << 19
                                                                    : 1u << 20;

// One source: what is left of a reduction is the conversion.
template <class From, class To>
std::vector<To> converted_by(Instructions one, Stage stage, const std::vector<From>& from) {
  std::vector<To> to(from.size());
  const auto* const source = reinterpret_cast<const std::byte*>(from.data());
  auto* const destination = reinterpret_cast<std::byte*>(to.data());
  const DataType type = DataTypeOf<std::conditional_t<std::is_same_v<From, float>, To, From>>::value;
  reduce_with(one, {type, ReduceOp::sum, 1, stage}, {&source, 1}, {&destination, 1}, {0, from.size()});
  return to;
}

TYPED_TEST(ReduceNarrowTypes, EveryPatternWidensAsInPlainCode) {
  std::vector<TypeParam> from;
  std::vector<float> want;
  for (std::uint32_t bits = 0; bits < kPatterns<TypeParam>; ++bits) {
    from.push_back(from_bits<TypeParam>(bits));
    want.push_back(with_one_nan(widened(from.back())));
  }
  for (const Instructions one : instructions_here()) {
    const auto have = converted_by<TypeParam, float>(one, Stage::partial, from);
    for (std::size_t i = 0; i < from.size(); ++i) ASSERT_TRUE(same_bits(have[i], want[i])) << name_of(one) << ", " << i;
  }
}

// Any bits; those around each pattern and the middles between them; and those with few bits set behind what is kept.
TYPED_TEST(ReduceNarrowTypes, FloatsNarrowAsInPlainCode) {
  std::mt19937_64 random(20261124);
  std::vector<float> from;
  for (int i = 0; i < 1'000'000; ++i) from.push_back(from_bits<float>(random()));
  for (std::uint32_t bits = 0; bits < kPatterns<TypeParam>; ++bits) {
    const auto at = std::bit_cast<std::uint32_t>(widened(from_bits<TypeParam>(bits)));
    const std::uint32_t middle = kMiddle<TypeParam>;
    for (const std::uint32_t off : {0u, 1u, middle - 1, middle, middle + 1}) {
      from.push_back(std::bit_cast<float>(at + off));
      from.push_back(std::bit_cast<float>(at - off));
    }
  }
  std::vector<TypeParam> want;
  for (const float value : from) want.push_back(with_one_nan(narrowed<TypeParam>(value)));
  for (const Instructions one : instructions_here()) {
    const auto have = converted_by<float, TypeParam>(one, Stage::total, from);
    for (std::size_t i = 0; i < from.size(); ++i) {
      ASSERT_TRUE(same_bits(have[i], want[i])) << name_of(one) << ", " << std::bit_cast<std::uint32_t>(from[i]);
    }
  }
}

TEST(Instructions, TheBaselineIsEverywhere) { EXPECT_TRUE(has(Instructions::baseline)); }

// Of one element of each rank.
template <class T>
T reduced(ReduceOp op, std::vector<T> elements) {
  std::vector<const std::byte*> sources;
  for (const T& element : elements) sources.push_back(reinterpret_cast<const std::byte*>(&element));
  T result{};
  auto* const destination = reinterpret_cast<std::byte*>(&result);
  reduce({DataTypeOf<T>::value, op, sources.size()}, sources, {&destination, 1}, {0, 1});
  return result;
}

TEST(ReduceIntegers, WrapAroundAndRoundTowardsZero) {
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(reduced<std::int64_t>(ReduceOp::sum, {kMax, 1}), kMin);
  EXPECT_EQ(reduced<std::int64_t>(ReduceOp::sum, {kMin, -1}), kMax);
  EXPECT_EQ(reduced<std::int64_t>(ReduceOp::average, {kMax, 1}), kMin / 2);
  EXPECT_EQ(reduced<std::int64_t>(ReduceOp::average, {-3, 0}), -1);
  EXPECT_EQ(reduced<std::int64_t>(ReduceOp::average, {3, 0}), 1);
  EXPECT_EQ(reduced<std::int32_t>(ReduceOp::average, {-7, 0, 0}), -2);
  EXPECT_EQ(reduced<std::int32_t>(ReduceOp::sum, {INT32_MAX, 1}), INT32_MIN);
  EXPECT_EQ(reduced<std::int32_t>(ReduceOp::product, {1 << 20, 1 << 20}), 0);
  EXPECT_EQ(reduced<std::int32_t>(ReduceOp::product, {-3, 5}), -15);
  EXPECT_EQ(reduced<std::int8_t>(ReduceOp::sum, {100, 100}), -56);
  EXPECT_EQ(reduced<std::int8_t>(ReduceOp::product, {-128, -1}), -128);
  EXPECT_EQ(reduced<std::int8_t>(ReduceOp::average, {-7, 0}), -3);
  EXPECT_EQ(reduced<std::int8_t>(ReduceOp::min, {2, -1, 3}), -1) << "it has a sign";
  EXPECT_EQ(reduced<std::uint8_t>(ReduceOp::sum, {200, 100}), 44);
  EXPECT_EQ(reduced<std::uint8_t>(ReduceOp::product, {100, 3}), 44);
  EXPECT_EQ(reduced<std::uint8_t>(ReduceOp::average, {200, 55}), 127);
  EXPECT_EQ(reduced<std::uint8_t>(ReduceOp::max, {1, 255, 127}), 255) << "it has no sign";
  EXPECT_EQ(reduced<std::uint8_t>(ReduceOp::min, {200, 255, 127}), 127);
  EXPECT_EQ(reduced<std::int32_t>(ReduceOp::min, {2, -1, 3}), -1) << "it has one";
  EXPECT_EQ(reduced<std::int64_t>(ReduceOp::max, {kMin, -1, -2}), -1);
}

TEST(ReduceIntegers, AnAverageOverMoreRanksThanTheTypeCounts) {
  EXPECT_EQ(reduced<std::uint8_t>(ReduceOp::average, std::vector<std::uint8_t>(256, 0)), 0);
  std::vector<std::uint8_t> of_300(300, 0);
  of_300[299] = 255;
  EXPECT_EQ(reduced<std::uint8_t>(ReduceOp::average, of_300), 0);
}

TEST(ReduceOfHalves, AreRoundedOnceAtTheEnd) {
  const auto sum = [](std::vector<float> values) {
    std::vector<Float16> halves;
    for (const float value : values) halves.push_back(to_float16(value));
    return to_float(reduced(ReduceOp::sum, halves));
  };
  EXPECT_EQ(sum({2048, 1}), 2048) << "2049 is in the middle of two: the even one";
  EXPECT_EQ(sum({2050, 1}), 2052);
  EXPECT_EQ(sum({2048, 1, 1}), 2050) << "not rounded after the first two";
  EXPECT_EQ(sum({60000, 60000, -60000}), 60000) << "not infinite in between";
  EXPECT_EQ(sum({60000, 60000}), std::numeric_limits<float>::infinity());
  EXPECT_EQ(sum({-60000, -60000}), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(to_float(reduced<Float16>(ReduceOp::average, {to_float16(60000), to_float16(60000)})), 60000);
  EXPECT_EQ(to_float(reduced<Float16>(ReduceOp::product, {to_float16(300), to_float16(300), to_float16(0.25f)})),
            22496);
  EXPECT_EQ(to_float(reduced<Bfloat16>(ReduceOp::sum, {to_bfloat16(256), to_bfloat16(1)})), 256);
  EXPECT_EQ(to_float(reduced<Bfloat16>(ReduceOp::sum, {to_bfloat16(256), to_bfloat16(1), to_bfloat16(1)})), 258);
  EXPECT_EQ(to_float(reduced<Bfloat16>(ReduceOp::sum, {to_bfloat16(3e38f), to_bfloat16(3e38f)})),
            std::numeric_limits<float>::infinity());
  const float smallest = std::ldexp(1.0f, -24);
  EXPECT_EQ(sum({smallest, smallest, smallest}), 3 * smallest);
}

TEST(ReduceFloat8, IsAccumulatedInFloat32AndRoundedOnce) {
  const auto sum_of_e4m3fn = [](std::vector<float> values) {
    std::vector<Float8E4m3fn> elements;
    for (const float value : values) elements.push_back(narrowed<Float8E4m3fn>(value));
    return widened(reduced(ReduceOp::sum, elements));
  };
  EXPECT_EQ(sum_of_e4m3fn({16, 1}), 16) << "17 is in the middle of two: the even one";
  EXPECT_EQ(sum_of_e4m3fn({16, 1, 1}), 18) << "not rounded after the first two";
  EXPECT_EQ(sum_of_e4m3fn({448, 448, -448}), 448) << "not NaN in between";
  EXPECT_EQ(sum_of_e4m3fn({448, 16}), 448) << "464 is in the middle of 448 and what would come next";
  EXPECT_TRUE(std::isnan(sum_of_e4m3fn({448, 18}))) << "there is no infinity";
  EXPECT_EQ(widened(reduced<Float8E5m2>(ReduceOp::sum, {{0x7b}, {0x7b}})), std::numeric_limits<float>::infinity());
}

TEST(ReduceBooleans, ASumIsAnyAndAProductIsAll) {
  const auto of = [](ReduceOp op, std::vector<Boolean> values) { return int{reduced(op, std::move(values)).bits}; };
  EXPECT_EQ(of(ReduceOp::sum, {{1}, {1}, {0}}), 1);
  EXPECT_EQ(of(ReduceOp::sum, {{0}, {0}}), 0);
  EXPECT_EQ(of(ReduceOp::sum, std::vector<Boolean>(256, {1})), 1) << "it does not wrap around";
  EXPECT_EQ(of(ReduceOp::product, {{1}, {1}}), 1);
  EXPECT_EQ(of(ReduceOp::product, {{1}, {0}, {1}}), 0);
}

// Of signalling ones and of those with a payload too, by every operator.
template <class T>
void expect_one_nan(std::vector<std::uint64_t> patterns) {
  const T one_nan = narrowed<T>(std::numeric_limits<Wide<T>>::quiet_NaN());
  for (const std::uint64_t bits : patterns) {
    for (const ReduceOp op : kOps) {
      for (const auto& elements : {std::vector<T>{from_bits<T>(bits)},
                                   {from_bits<T>(bits), narrowed<T>(1)},
                                   {narrowed<T>(1), from_bits<T>(bits)},
                                   {from_bits<T>(bits), from_bits<T>(~bits)}}) {
        EXPECT_TRUE(same_bits(reduced(op, elements), one_nan)) << bits;
      }
    }
  }
}

TEST(ReduceNaN, ComesOutAsOneAndTheSame) {
  expect_one_nan<float>({0x7f800001, 0xff800001, 0x7fc00000, 0xffc00000, 0x7fffffff, 0xffabcdef});
  expect_one_nan<double>({0x7ff0000000000001, 0xfff0000000000001, 0xfff8000000000000, 0x7fffffffffffffff});
  expect_one_nan<Float16>({0x7c01, 0xfc01, 0x7e00, 0xfe00, 0x7fff});
  expect_one_nan<Float8E4m3fn>({0x7f, 0xff});
  expect_one_nan<Float8E5m2>({0x7d, 0xfd, 0x7e, 0xff});
  expect_one_nan<Bfloat16>({0x7f81, 0xff81, 0x7fc0, 0xffc0, 0x7fff});
}

template <class T>
void expect_nan_wins() {
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    for (std::size_t at = 0; at < 3; ++at) {
      std::vector<T> elements{narrowed<T>(1), narrowed<T>(-2), narrowed<T>(3)};
      elements[at] = narrowed<T>(std::numeric_limits<Wide<T>>::quiet_NaN());
      EXPECT_TRUE(std::isnan(widened(reduced(op, elements)))) << "of rank " << at;
    }
    const Wide<T> infinity = std::numeric_limits<Wide<T>>::infinity();
    const std::vector<T> infinite{narrowed<T>(infinity), narrowed<T>(0), narrowed<T>(-infinity)};
    EXPECT_EQ(widened(reduced(op, infinite)), op == ReduceOp::min ? -infinity : infinity);
  }
}

TEST(ReduceMinAndMax, GiveNaNWhereAnyElementIs) {
  expect_nan_wins<float>();
  expect_nan_wins<double>();
  expect_nan_wins<Float16>();
  expect_nan_wins<Bfloat16>();
  expect_nan_wins<Float8E5m2>();
}

TEST(ReduceMinAndMax, TakeTheFirstOfEqualZeros) {
  EXPECT_TRUE(std::signbit(reduced<float>(ReduceOp::max, {-0.0f, 0.0f})));
  EXPECT_FALSE(std::signbit(reduced<float>(ReduceOp::min, {0.0f, -0.0f})));
}

template <class T>
void expect_scalars_as(DataType type, const T& narrowed, double largest) {
  std::mt19937_64 random(20261125);
  const auto bits_of = [&](double value) {
    const auto scalar = tensor::scalar_of(value, type);
    decltype(narrowed(0.0F).bits) bits = 0;
    if (scalar) std::memcpy(&bits, scalar->data(), sizeof bits);
    return scalar ? std::optional(bits) : std::nullopt;
  };
  for (int trial = 0; trial < 100'000; ++trial) {
    const double scale = std::ldexp(largest, -static_cast<int>(random() % 40));
    const auto value = static_cast<float>((static_cast<double>(random() >> 11) / 0x1p+52 - 1) * scale);
    ASSERT_EQ(bits_of(value), narrowed(value).bits) << value;
  }
  for (const double value : {0.0, -0.0, 1.0, -largest}) {
    EXPECT_EQ(bits_of(value), narrowed(static_cast<float>(value)).bits) << value;
  }
  for (const double value : {largest * 1.08, -1e30 * largest, 1e300, HUGE_VAL, std::nan("")}) {
    EXPECT_FALSE(bits_of(value)) << value;
  }
}

TEST(Scalar, IsTheNearestElementOfItsType) {
  expect_scalars_as(
      DataType::float16, [](float value) { return to_float16(value); }, 65504);
  expect_scalars_as(
      DataType::bfloat16, [](float value) { return to_bfloat16(value); }, 0x1.fep+127);
  expect_scalars_as(
      DataType::float8_e4m3fn, [](float value) { return testing::encoded<testing::Float8E4m3fn>(value); }, 448);
  expect_scalars_as(
      DataType::float8_e5m2, [](float value) { return testing::encoded<testing::Float8E5m2>(value); }, 57344);
  EXPECT_FALSE(tensor::scalar_of(1e39, DataType::float32));
  EXPECT_TRUE(tensor::scalar_of(1e39, DataType::float64));
  EXPECT_FALSE(tensor::scalar_of(1, DataType::int64));
}

}  // namespace
}  // namespace ddp::cpu_backend
