#include "worker_runtime/backends/cpu/cpu_backend.hpp"
#include "worker_runtime/core/registry.hpp"
#if DDP_HAVE_NCCL_BACKEND
#include "worker_runtime/backends/nccl/nccl_backend.hpp"
#endif

namespace ddp::core {

namespace {

constexpr BackendEntry kBackends[] = {
    {.name = "cpu",
     .device = Device::Kind::cpu,
     .make = cpu_backend::make_cpu_backend,
     .make_shared_file = cpu_backend::make_shared_file},
#if DDP_HAVE_NCCL_BACKEND
    {.name = "nccl", .device = Device::Kind::cuda, .make = nccl_backend::make_nccl_backend},
#else
    {.name = "nccl",
     .device = Device::Kind::cuda,
     .make = nullptr,
     .absence =
         "CMake found no CUDA toolkit\ntry:   a build with CUDA 12 or later (CUDAToolkit_ROOT says where it is), "
         "or the backend cpu"},
#endif
};

}  // namespace

std::span<const BackendEntry> registered_backends() { return kBackends; }

}  // namespace ddp::core
