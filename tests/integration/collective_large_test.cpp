// More elements than 31 bits count, so that a narrow number anywhere shows.
#include <ddp/ddp.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tests/integration/rank_processes.hpp"
#include "worker_runtime/cpu_backend/memory/available_memory.hpp"

namespace ddp {
namespace {

constexpr int kSize = 2;
constexpr std::size_t kCount = (std::size_t{1} << 31) + 6;
constexpr std::uint64_t kBytesBeside = 2u << 30;  // what the rest of the machine is left

std::uint8_t element(int rank, std::size_t i) {
  const auto low = static_cast<std::uint32_t>(i);
  return static_cast<std::uint8_t>((low * 0x9e3779b9u >> 24) + (i >> 31) * 7 + static_cast<unsigned>(rank) * 101);
}

void fill(std::uint8_t* elements, int rank) {
  for (std::size_t i = 0; i < kCount; ++i) elements[i] = element(rank, i);
}

template <class Want>
void expect_elements(const std::string& what, const std::uint8_t* have, const Want& want) {
  constexpr std::size_t kBlock = 4096;  // without a branch for each element it takes a fifth of the time
  for (std::size_t begin = 0; begin < kCount; begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, kCount);
    std::uint8_t differs = 0;
    for (std::size_t i = begin; i < end; ++i) differs = static_cast<std::uint8_t>(differs | (have[i] ^ want(i)));
    if (differs != 0) FAIL() << what << ": some of the elements from " << begin << " to " << end << " are wrong";
  }
}

void check_collectives(ProcessGroup& group, std::uint8_t* elements) {
  fill(elements, group.rank());
  group.all_reduce({elements, kCount});
  expect_elements("all_reduce", elements,
                  [](std::size_t i) { return static_cast<std::uint8_t>(element(0, i) + element(1, i)); });

  fill(elements, group.rank());
  group.broadcast({elements, kCount}, 1);
  expect_elements("broadcast", elements, [](std::size_t i) { return element(1, i); });

  fill(elements, group.rank());
  constexpr std::size_t kHalf = kCount / kSize;
  group.all_gather({elements + kHalf * static_cast<std::size_t>(group.rank()), kHalf}, {elements, kCount});
  expect_elements("all_gather", elements, [](std::size_t i) { return element(i < kHalf ? 0 : 1, i); });
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
