#include "worker_runtime/engine/host_gradients.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddp/error.hpp"
#include "tests/sanitized.hpp"

namespace ddp::gradient_engine {
namespace {

constexpr std::size_t kBytes = (5u << 20) + 123;

// Whole pages within [data + first, data + end) that take memory.
std::size_t resident_pages(const std::byte* data, std::size_t first, std::size_t end) {
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  first = (first + page_bytes - 1) / page_bytes * page_bytes;
  end = end / page_bytes * page_bytes;
  std::vector<unsigned char> pages((end - first) / page_bytes);
  EXPECT_EQ(::mincore(const_cast<std::byte*>(data) + first, end - first, pages.data()), 0);
  return static_cast<std::size_t>(std::count_if(pages.begin(), pages.end(), [](auto page) { return (page & 1) != 0; }));
}

TEST(HostGradients, ReleasedPartIsZeroAndTakesNoMemory) {
  const auto memory = allocate_releasable(kBytes);
  auto* const data = static_cast<std::byte*>(memory.get());
  const std::size_t first = 12'345, end = kBytes - 67;
  const MemoryRange part(data + first, end - first, DataType::uint8);
  use_huge_pages(part);
  for (int round = 0; round < 3; ++round) {
    std::fill_n(data, kBytes, std::byte{1});
    EXPECT_GT(resident_pages(data, first, end), 0U);
    release_to_system(part);
    EXPECT_EQ(resident_pages(data, first, end), 0U);
    const auto is = [](std::byte wanted) { return [wanted](std::byte each) { return each == wanted; }; };
    EXPECT_TRUE(std::all_of(data, data + first, is(std::byte{1})));
    EXPECT_TRUE(std::all_of(data + first, data + end, is(std::byte{0})));
    EXPECT_TRUE(std::all_of(data + end, data + kBytes, is(std::byte{1})));
  }
}

TEST(HostGradients, RefusalNamesTheLimitThatIsSet) {
  if (test::kIsSanitized) GTEST_SKIP() << "a sanitizer has its own use of memory";
  const struct {
    __rlimit_resource_t resource;
    const char* want;
  } cases[] = {{RLIMIT_AS, "try:   compare `ulimit -v` with"}, {RLIMIT_DATA, "try:   compare `ulimit -d` with"}};
  for (const auto& each : cases) {
    SCOPED_TRACE(each.want);
    rlimit old{};
    ASSERT_EQ(::getrlimit(each.resource, &old), 0);
    const rlimit lower{rlim_t{1} << 33, old.rlim_max};
    ASSERT_EQ(::setrlimit(each.resource, &lower), 0);
    std::string text;
    try {
      allocate_releasable(std::size_t{1} << 33);
    } catch (const Error& error) {
      text = error.what();
    }
    ASSERT_EQ(::setrlimit(each.resource, &old), 0);
    EXPECT_THAT(text, ::testing::HasSubstr(each.want));
  }
}

TEST(HostGradients, PartOfOnePageBecomesZero) {
  const auto memory = allocate_releasable(0);
  auto* const data = static_cast<std::byte*>(memory.get());
  std::fill_n(data, 100, std::byte{1});
  release_to_system({data + 10, 80, DataType::uint8});
  EXPECT_EQ(std::count(data, data + 100, std::byte{1}), 20);
}

}  // namespace
}  // namespace ddp::gradient_engine
