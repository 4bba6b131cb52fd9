// More elements than 31 bits count, so that a narrow number anywhere shows.
#include <ddp/ddp.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/integration/rank_processes.hpp"
#include "worker_runtime/backends/cpu/memory/available_memory.hpp"

namespace ddp {
namespace {

constexpr int kSize = 2;
constexpr std::size_t kCount = (std::size_t{1} << 31) + 6;
constexpr std::uint64_t kBytesBeside = 2u << 30;  // what the rest of the machine is left

// Element i of a rank is that of its pattern at i modulo the pattern's size, a prime: so an index that lost its upper
// bits meets another element. Blocks are copied and compared at the speed of memory.
constexpr std::size_t kPeriod = 1'048'573;
using Pattern = std::vector<std::uint8_t>;

Pattern pattern_of(int rank) {
  Pattern pattern(kPeriod);
  std::mt19937 random(static_cast<std::uint32_t>(rank));
  for (auto& element : pattern) element = static_cast<std::uint8_t>(random() >> 24);
  return pattern;
}

Pattern sum_of(const Pattern& one, const Pattern& other) {
  Pattern sum(kPeriod);
  for (std::size_t i = 0; i < kPeriod; ++i) sum[i] = static_cast<std::uint8_t>(one[i] + other[i]);
  return sum;
}

// Calls visit(begin, count, first of the pattern) for the blocks of [begin, end), each within one period.
template <class Visit>
void for_each_block(std::size_t begin, std::size_t end, const Visit& visit) {
  while (begin < end) {
    const std::size_t at = begin % kPeriod;
    const std::size_t count = std::min(kPeriod - at, end - begin);
    visit(begin, count, at);
    begin += count;
  }
}

void fill(std::uint8_t* elements, const Pattern& pattern) {
  for_each_block(0, kCount, [&](std::size_t begin, std::size_t count, std::size_t at) {
    std::memcpy(elements + begin, pattern.data() + at, count);
  });
}

void expect_elements(const std::string& what, const std::uint8_t* have, std::size_t first, std::size_t end,
                     const Pattern& want) {
  for_each_block(first, end, [&](std::size_t begin, std::size_t count, std::size_t at) {
    EXPECT_EQ(std::memcmp(have + begin, want.data() + at, count), 0)
        << what << ": some of the " << count << " elements from " << begin << " are wrong";
  });
}

void check_collectives(ProcessGroup& group, std::uint8_t* elements) {
  const Pattern patterns[kSize] = {pattern_of(0), pattern_of(1)};
  const Pattern& own = patterns[group.rank()];
  fill(elements, own);
  group.all_reduce({elements, kCount});
  expect_elements("all_reduce", elements, 0, kCount, sum_of(patterns[0], patterns[1]));

  fill(elements, own);
  group.broadcast({elements, kCount}, 1);
  expect_elements("broadcast", elements, 0, kCount, patterns[1]);

  fill(elements, own);
  constexpr std::size_t kHalf = kCount / kSize;
  group.all_gather({elements + kHalf * static_cast<std::size_t>(group.rank()), kHalf}, {elements, kCount});
  expect_elements("all_gather, of rank 0", elements, 0, kHalf, patterns[0]);
  expect_elements("all_gather, of rank 1", elements, kHalf, kCount, patterns[1]);
}

std::string lack_of_memory() {
  const std::uint64_t needed = kSize * kCount + kBytesBeside;
  if (cpu_backend::available_memory_bytes({}) >= needed) return "";
  return std::to_string(needed >> 20) + " MiB of free memory are needed";
}

TEST(Beyond31Bits, OfPlainMemoryComeOutRight) {
  if (const auto lack = lack_of_memory(); !lack.empty()) GTEST_SKIP() << lack;
  testing::run_ranks(kSize, [](int) {
    auto group = init_process_group();
    const auto elements = std::make_unique<std::uint8_t[]>(kCount);
    check_collectives(group, elements.get());
  });
}

TEST(Beyond31Bits, OfRegisteredMemoryComeOutRight) {
  if (const auto lack = lack_of_memory(); !lack.empty()) GTEST_SKIP() << lack;
  testing::run_ranks(kSize, [](int) {
    auto group = init_process_group();
    const auto memory = group.allocate(kCount);
    check_collectives(group, static_cast<std::uint8_t*>(memory.data()));
  });
}

}  // namespace
}  // namespace ddp
