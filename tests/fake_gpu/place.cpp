#include "tests/nccl/place.hpp"

#include <cstdlib>

#include "tests/fake_gpu/fake_gpu.h"

#if defined(__SANITIZE_ADDRESS__)
// LeakSanitizer of GCC 12 crashes at times when it looks at a process whose threads are ending just then ("Tracer caught signal
// 11"), as those of the stand-in's streams are. GivesEverythingBack counts what must be given back.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() { return "detect_leaks=0"; }
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
