// What differs between the places where tests of the backend nccl run: over the stand-in (tests/fake_gpu), and on a GPU
// (tests/gpu). A test program is linked with the one or the other.
//
// Threads: a rank's main thread.
#pragma once

#include <optional>

namespace ddp::nccl_test {

struct Place {
  std::optional<int> device{};  // empty: that of LOCAL_RANK
  bool share_device = false;
};

// Where this rank's device is. Prepares the environment that CUDA and NCCL read, so it comes before any call of theirs.
Place take_place();

// How many of a kind exist in this process: "ncclComm", "ncclMemAlloc", as in fake_gpu.h. Nothing on a GPU, where
// nobody counts them.
std::optional<unsigned long> live(const char* kind);

// How often this process, the library included, has called a CUDA function that makes the host wait for a device. What
// NCCL calls is not seen on a GPU.
unsigned long host_synchronisations();

}  // namespace ddp::nccl_test
