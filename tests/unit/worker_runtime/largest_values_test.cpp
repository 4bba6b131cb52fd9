#include "worker_runtime/engine/hooks/largest_values.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace ddp::gradient_engine {
namespace {

std::vector<std::uint32_t> places_of(const std::vector<float>& values, std::size_t count,
                                     std::vector<std::uint32_t>& scratch) {
  std::vector<PlacedValue> largest(count);
  take_largest(values, largest, scratch);
  std::vector<std::uint32_t> places;
  for (const auto& each : largest) {
    places.push_back(each.place);
    EXPECT_TRUE(each.value == values[each.place] || std::isnan(values[each.place]));
  }
  return places;
}

// By sorting.
std::vector<std::uint32_t> expected(const std::vector<float>& values, std::size_t count) {
  const auto magnitude = [&](std::uint32_t place) {
    return std::isnan(values[place]) ? std::numeric_limits<float>::infinity() : std::abs(values[place]);
  };
  std::vector<std::uint32_t> places(values.size());
  std::iota(places.begin(), places.end(), 0U);
  std::stable_sort(places.begin(), places.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return magnitude(a) > magnitude(b); });
  places.resize(count);
  std::sort(places.begin(), places.end());
  return places;
}

TEST(LargestValues, AreThoseThatSortingFinds) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<std::uint32_t> scratch;
  const auto check = [&](const std::string& what, const std::vector<float>& values) {
    for (const std::size_t count : {std::size_t{1}, values.size() / 100, values.size() / 3, values.size()}) {
      SCOPED_TRACE(what + ", " + std::to_string(count) + " of " + std::to_string(values.size()));
      EXPECT_EQ(places_of(values, count, scratch), expected(values, count));
    }
  };
  for (const std::size_t size : {1, 3, 17, 1000, 20'000}) {
    std::vector<float> values(size);
    const auto fill = [&values](const auto& make) { std::generate(values.begin(), values.end(), make); };
    fill([&] { return normal(random); });
    check("normal", values);
    fill([&] { return static_cast<float>(static_cast<int>(random() % 5) - 2); });
    check("few values", values);
    fill([] { return -0.0F; });
    check("all zero", values);
    fill([&] { return std::numeric_limits<float>::denorm_min() * static_cast<float>(random() % 100); });
    check("denormal", values);
    fill([&] {
      const float special[] = {NAN, -NAN, INFINITY, -INFINITY, 0, std::numeric_limits<float>::max(), normal(random)};
      return special[random() % std::size(special)];
    });
    check("special", values);
  }
}

TEST(LargestValues, MayBeNone) {
  std::vector<std::uint32_t> scratch;
  EXPECT_EQ(places_of({1, 2, 3}, 0, scratch), std::vector<std::uint32_t>());
}

}  // namespace
}  // namespace ddp::gradient_engine
