#include "tests/fake_gpu/host_kernels_launch.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "tests/fake_gpu/cudart_call.hpp"
#include "tests/fake_gpu/cudart_handles.hpp"
#include "tests/fake_gpu/memory_table.hpp"

namespace ddp::fake_gpu {

namespace {

bool is_on_device(const Touched& touched) {
  if (touched.bytes == 0) return true;
  const auto block = block_of(touched.memory, touched.bytes);
  return block && block->on_device();
}

}  // namespace

cudaError_t launch_kernel(const char* name, cudaStream_t handle, std::vector<Touched> touched,
                          std::function<void()> work) {
  return stream_call("cudaLaunchKernel", [&](const Fault& fault) {
    const auto stream = stream_of(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    auto guarded = [name, all = std::move(touched), work = std::move(work)] {
      if (std::all_of(all.begin(), all.end(), is_on_device)) return work();
      std::fprintf(stderr, "fake GPU: kernel %s touches what is not device memory\n", name);
      make_sticky(cudaErrorIllegalAddress);
    };
    enqueue(stream, with_fault(fault, std::move(guarded)));
    return cudaSuccess;
  });
}

}  // namespace ddp::fake_gpu
