// Cores, for those who wait for others without sleeping.
#pragma once

#include <sched.h>

#include <cstddef>

namespace ddp::cpu_backend {

inline std::size_t core_count() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 1;  // more cores than the set holds: no spinning
  return static_cast<std::size_t>(CPU_COUNT(&allowed));
}

inline void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

}  // namespace ddp::cpu_backend
