// Makes the backend `nccl`: collectives of the process group on the memory of one GPU, by NCCL. See group.hpp.
//
// Fork: as ProcessGroup: a forked child has no part in it, and leaks it.
#pragma once

#include <memory>

#include "base/deadline.hpp"
#include "worker_runtime/core/bootstrap/bootstrap.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::nccl_backend {

// As core::BackendEntry says. Loads NCCL, picks a GPU and makes it the calling thread's, agrees with the other ranks
// through the store, and connects.
//
// Throws InvalidArgument where there is no GPU for this rank, or two ranks are on one; TimeoutError at the deadline;
// Error where NCCL can't be had or refuses.
std::unique_ptr<process_group::Backend> make_nccl_backend(core::Bootstrap& bootstrap, const InitOptions& options,
                                                          base::Deadline& deadline);

// What the library does with the memory of a GPU where it has no group.
std::shared_ptr<process_group::DeviceMemory> memory_of_device(int device);

}  // namespace ddp::nccl_backend
