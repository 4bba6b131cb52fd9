#include "worker_runtime/tensor/stream_copy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace ddp::tensor {
namespace {

constexpr std::size_t kRoom = 512;
constexpr std::byte kUntouched{0xee};

TEST(StreamCopy, CopiesThatAndNothingElseWhereverItLies) {
  std::vector<unsigned char> numbers(kRoom);
  std::iota(numbers.begin(), numbers.end(), static_cast<unsigned char>(1));
  const auto* const from = reinterpret_cast<const std::byte*>(numbers.data());
  for (std::size_t to_offset = 0; to_offset <= 64; to_offset += 3) {
    for (std::size_t from_offset = 0; from_offset <= 64; from_offset += 5) {
      for (const std::size_t bytes : {0, 1, 15, 63, 64, 65, 127, 128, 200, 300}) {
        std::vector<std::byte> to(kRoom, kUntouched);
        stream_copy(to.data() + to_offset, from + from_offset, bytes);
        for (std::size_t i = 0; i < kRoom; ++i) {
          const bool is_copied = i >= to_offset && i < to_offset + bytes;
          ASSERT_EQ(to[i], is_copied ? from[from_offset + i - to_offset] : kUntouched)
              << i << " of " << bytes << " from " << from_offset << " to " << to_offset;
        }
      }
    }
  }
}

// Most of it is copied by a loop that prefetches.
TEST(StreamCopy, CopiesPagesAndWhatFollowsThem) {
  std::vector<std::uint32_t> numbers(1 << 13);
  std::iota(numbers.begin(), numbers.end(), 1u);
  const auto* const from = reinterpret_cast<const std::byte*>(numbers.data());
  for (const std::size_t bytes : {4095, 4096, 4097, 4159, 4160, 4161, 4223, 4224, 8191, 20'001}) {
    for (const std::size_t offset : {0, 1, 60, 64}) {
      std::vector<std::byte> to(bytes + offset + 1, kUntouched);
      stream_copy(to.data() + offset, from + 3, bytes);
      EXPECT_TRUE(std::equal(from + 3, from + 3 + bytes, to.data() + offset)) << bytes << " bytes, offset " << offset;
      EXPECT_EQ(to.back(), kUntouched) << bytes << " bytes, offset " << offset;
      EXPECT_EQ(std::count(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(offset), kUntouched),
                static_cast<std::ptrdiff_t>(offset));
    }
  }
}

}  // namespace
}  // namespace ddp::tensor
