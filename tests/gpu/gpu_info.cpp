// Names the GPU, the driver and the libraries that tests and benchmarks will take, a line for each; ends with 2, and
// one message, where something is missing.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <exception>
#include <string>

#include "worker_runtime/backends/nccl/nccl_library.hpp"

namespace {

constexpr int kExitMissing = 2;

std::string version(int code) { return std::to_string(code / 1000) + "." + std::to_string(code % 1000 / 10); }

}  // namespace

int main() {
  int count = 0, driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (const cudaError_t code = cudaGetDeviceCount(&count); code != cudaSuccess || count == 0) {
    std::fprintf(stderr, "no GPU that CUDA %s can use: %s\n", version(runtime).c_str(),
                 code == cudaSuccess ? "there is none" : cudaGetErrorString(code));
    return kExitMissing;
  }
  cudaDeviceProp properties{};
  cudaGetDeviceProperties(&properties, 0);
  std::printf("GPU: %s, %zu MiB, compute capability %d.%d, %d visible\n", properties.name,
              properties.totalGlobalMem >> 20, properties.major, properties.minor, count);
  std::printf("CUDA: the driver's %s, the runtime's %s\n", version(driver).c_str(), version(runtime).c_str());
  try {
    std::printf("NCCL: %s\n", ddp::nccl_backend::NcclLibrary::of_process().name().c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return kExitMissing;
  }
}
