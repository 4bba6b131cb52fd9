#include "worker_runtime/engine/host_gradients.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <system_error>

#include "ddp/error.hpp"

namespace ddp::gradient_engine {
namespace {

constexpr std::uintptr_t kHugePageBytes = 1u << 21;  // of x86-64, and of arm64 with pages of 4 KiB

// The whole pages in it.
struct Pages {
  Pages(const MemoryRange& memory, std::uintptr_t page_bytes)
      : begin((reinterpret_cast<std::uintptr_t>(memory.data) + page_bytes - 1) / page_bytes * page_bytes),
        end((reinterpret_cast<std::uintptr_t>(memory.data) + memory.bytes()) / page_bytes * page_bytes) {}

  bool advise(int advice) const {
    return begin < end && ::madvise(reinterpret_cast<void*>(begin), end - begin, advice) == 0;
  }

  std::uintptr_t begin, end;
};

bool is_limited(__rlimit_resource_t resource) {
  rlimit limit{};
  return ::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

// The limits of private memory that is mapped.
std::string limits_to_compare() {
  if (!is_limited(RLIMIT_DATA)) return "`ulimit -v`";
  return is_limited(RLIMIT_AS) ? "`ulimit -v` and `ulimit -d`" : "`ulimit -d`";
}

}  // namespace

std::shared_ptr<void> allocate_releasable(std::size_t bytes) {
  bytes = std::max<std::size_t>(bytes, 1);
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (at == MAP_FAILED) {
    throw Error("no address space for " + std::to_string(bytes) +
                " bytes of gradients: " + std::generic_category().message(errno) + "\ntry:   compare " +
                limits_to_compare() + " with what this process uses");
  }
  std::shared_ptr<void> memory(at, [bytes](void* begin) { ::munmap(begin, bytes); });
  if (::madvise(at, bytes, MADV_DONTFORK) != 0) {
    throw Error("madvise(MADV_DONTFORK): " + std::generic_category().message(errno));
  }
  return memory;
}

void use_huge_pages(const MemoryRange& memory) { Pages(memory, kHugePageBytes).advise(MADV_HUGEPAGE); }

void release_to_system(const MemoryRange& memory) {
  static const auto page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data), end = begin + memory.bytes();
  const Pages pages(memory, page_bytes);
  if (!pages.advise(MADV_DONTNEED)) {  // locked in memory, perhaps
    std::memset(memory.data, 0, memory.bytes());
    return;
  }
  std::memset(memory.data, 0, pages.begin - begin);
  std::memset(reinterpret_cast<void*>(pages.end), 0, end - pages.end);
}

}  // namespace ddp::gradient_engine
