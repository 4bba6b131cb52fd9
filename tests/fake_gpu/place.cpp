#include "tests/nccl/place.hpp"

#include <cstdlib>

#include "tests/fake_gpu/fake_gpu.h"

#if defined(__SANITIZE_ADDRESS__)
// LeakSanitizer guesses where a thread's variables of a library are that was loaded by dlopen, as the
// stand-in for NCCL is, and crashes at times on what it takes for their place. So it does without them, and what only
// they lead to seems lost: that is glibc's own.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_options() {
  return "use_tls=0:print_suppressions=0";
}
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions() {
  return "leak:_dlerror_run\nleak:__cxa_thread_atexit_impl\n";
}
#endif

namespace ddp::nccl_test {

// LOCAL_RANK is the rank without a launcher's word, so every rank has a device of its own.
Place take_place() {
  ::setenv("DDP_NCCL_LIBRARY", DDP_FAKE_NCCL, 0);
  return {};
}

std::optional<unsigned long> live(const char* kind) { return fake_gpu_live(kind); }

unsigned long host_synchronisations() { return fake_gpu_calls("host synchronisation"); }

}  // namespace ddp::nccl_test
