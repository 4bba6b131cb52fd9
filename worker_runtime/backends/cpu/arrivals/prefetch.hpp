// Gets hold of memory that is written soon, while there is something else to wait for: a line that another core has
// read since costs a trip there and back.
#pragma once

namespace ddp::cpu_backend {

inline void prefetch_for_reading(const void* at) { __builtin_prefetch(at); }

inline void prefetch_for_writing(const void* at) {
#if defined(__x86_64__)
  // Which nobody's default flags let the compiler use.
  asm volatile("prefetchw %0" ::"m"(*static_cast<const char*>(at)));
#else
  __builtin_prefetch(at, 1);
#endif
}

}  // namespace ddp::cpu_backend
