// A collective as calls of NCCL on a stream.
//
// What NCCL itself has only since 2.28 (gather, scatter, all_to_all) is made of grouped sends and receives before.
//
// Threads: the caller's, which holds the communicator's lock and has begun a group.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "worker_runtime/backends/nccl/nccl_abi.hpp"
#include "worker_runtime/backends/nccl/nccl_library.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::nccl_backend {

// What is only moved is bytes where NCCL, or an old NCCL, lacks the type.
abi::DataType nccl_type(const process_group::Collective& collective);

// Of booleans, which NCCL has as bytes, a sum is a maximum and a product a minimum.
abi::RedOp nccl_op(const process_group::Collective& collective);

// Throws InvalidArgument for a call that this NCCL can't make, on every rank alike.
void require_support(const NcclLibrary& nccl, const process_group::Collective& collective);

struct LaunchPlace {
  int rank = 0;
  int size = 1;
  // On the device: what ranks exchange for an allocate, kWordsPerRank of each; a barrier's too.
  std::int64_t* words = nullptr;
  cudaStream_t stream = nullptr;
};

constexpr std::size_t kWordsPerRank = 4;

// The first result that is neither success nor in_progress; else the last.
abi::Result launch(const NcclLibrary& nccl, const process_group::Collective& collective, const LaunchPlace& place,
                   abi::Comm comm);

}  // namespace ddp::nccl_backend
