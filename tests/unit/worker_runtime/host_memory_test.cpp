// Memory of the host as the library copies it.
#include "worker_runtime/process_group/device_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

namespace ddp::process_group {
namespace {

// As the tensors of a checkpoint lie in its buffer: one behind the other, of any size. Small ones together are copied
// in another way than large ones.
TEST(HostMemory, CopiesEachTensorToItsPlaceWhateverTheirSizes) {
  std::vector<std::uint32_t> numbers(3 << 20);
  std::iota(numbers.begin(), numbers.end(), 1u);
  const auto* const all = reinterpret_cast<const std::byte*>(numbers.data());
  const std::size_t few[] = {0, 1, 4, 70, 4096};
  const std::size_t many[] = {5, 0, 1 << 20, 3, (1 << 20) + 7, 64, 4160, 3 << 20, 2, 6'000'001};
  for (const std::span<const std::size_t> sizes : {std::span<const std::size_t>(few), {many}}) {
    const std::size_t bytes = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
    const auto memory = host_memory();
    const auto buffer = memory->allocate_on_host(bytes + 1);
    std::memset(buffer.get(), 0xee, bytes + 1);
    std::vector<DeviceMemory::Copy> copies;
    std::size_t at = 0;
    for (const std::size_t size : sizes) {
      copies.push_back({buffer.get() + at, size == 0 ? nullptr : all + at, size});
      at += size;
    }
    memory->copy_to_host(copies, nullptr);
    EXPECT_TRUE(std::equal(all, all + bytes, buffer.get())) << bytes << " bytes";
    EXPECT_EQ(buffer[bytes], std::byte{0xee}) << bytes << " bytes";
  }
}

}  // namespace
}  // namespace ddp::process_group
