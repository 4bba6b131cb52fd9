#include "worker_runtime/process_group/device_memory.hpp"

#include "worker_runtime/tensor/stream_copy.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

namespace ddp::process_group {

namespace {

constexpr std::size_t kHugePageBytes = 2u << 20;
// More than the caches of a core hold. memcpy() would fetch each line that it is about to overwrite.
constexpr std::size_t kStreamedBytesMin = 4u << 20;

class FinishedCopy : public HostCopy {
 public:
  FinishedCopy(const std::byte* from, std::size_t bytes) : bytes_(from, from + bytes) {}
  std::span<const std::byte> bytes() override { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class HostMemory : public DeviceMemory {
 public:
  Device device() const override { return {}; }

  void zero(const MemoryRange& range, void*) override {
    if (range.count > 0) std::memset(range.data, 0, range.bytes());
  }

  void copy(void* to, const void* from, std::size_t bytes, void*) override { copy_bytes(to, from, bytes); }

  std::shared_ptr<void> allocate(std::size_t bytes, void*) override {
    void* const memory = std::calloc(1, bytes);
    if (memory == nullptr && bytes > 0) throw std::bad_alloc();
    return {memory, [](void* each) { std::free(each); }};
  }

  void write(void* to, std::span<const std::byte> bytes, void*) override { copy_bytes(to, bytes.data(), bytes.size()); }

  std::unique_ptr<HostCopy> begin_read(const void* from, std::size_t bytes, void*) override {
    return std::make_unique<FinishedCopy>(static_cast<const std::byte*>(from), bytes);
  }

  void wait_for_all() override {}
  void copy_to_host(std::span<const Copy> copies, void*) override {
    std::size_t bytes = 0;
    for (const Copy& each : copies) bytes += each.bytes;
    if (bytes < kStreamedBytesMin) return copy_all(copies);
    for (const Copy& each : copies) stream_bytes(each.to, each.from, each.bytes);
  }
  void copy_from_host(std::span<const Copy> copies, void*) override { copy_all(copies); }
  std::shared_ptr<std::byte[]> allocate_on_host(std::size_t bytes) override {
    if (bytes < kHugePageBytes) return std::shared_ptr<std::byte[]>(new std::byte[bytes]);
    // The first copy into it would otherwise take a page fault for every 4 KiB.
    const std::size_t padded = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kHugePageBytes, padded));
    if (memory == nullptr) throw std::bad_alloc();
    ::madvise(memory, padded, MADV_HUGEPAGE);
    return {memory, [](std::byte* each) { std::free(each); }};
  }

 private:
  static void copy_all(std::span<const Copy> copies) {
    for (const Copy& each : copies) copy_bytes(each.to, each.from, each.bytes);
  }
  static void copy_bytes(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  static void stream_bytes(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) tensor::stream_copy(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
  }
};

}  // namespace

std::shared_ptr<DeviceMemory> host_memory() { return std::make_shared<HostMemory>(); }

}  // namespace ddp::process_group
