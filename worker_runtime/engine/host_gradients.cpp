#include "worker_runtime/engine/host_gradients.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace ddp::gradient_engine {

void release_to_system(const MemoryRange& memory) {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data), end = begin + memory.bytes();
  const std::uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
  if (first >= last || ::madvise(reinterpret_cast<void*>(first), last - first, MADV_REMOVE) != 0) {
    std::memset(memory.data, 0, memory.bytes());
    return;
  }
  std::memset(memory.data, 0, first - begin);
  std::memset(reinterpret_cast<void*>(last), 0, end - last);
}

}  // namespace ddp::gradient_engine
