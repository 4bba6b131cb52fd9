// How libddp's kernels are put on a stream: blocks of kThreads threads in one dimension.
#pragma once

#include <cuda_runtime.h>

namespace ddp::nccl_backend::kernels {

constexpr unsigned kThreads = 256;

template <class... Taken, class... Given>
cudaError_t launch(void (*kernel)(Taken...), unsigned blocks, cudaStream_t stream, const Given&... given) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Taken>(given)...);
}

}  // namespace ddp::nccl_backend::kernels
