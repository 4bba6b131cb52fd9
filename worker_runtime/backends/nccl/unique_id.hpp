// How the ranks of a group agree, before NCCL connects them, on its unique id, on its version and on who has which GPU.
//
// Threads: one caller.
#pragma once

#include <string>

#include "worker_runtime/backends/nccl/nccl_library.hpp"
#include "worker_runtime/core/bootstrap/store_agreement.hpp"

namespace ddp::nccl_backend {

struct Arrival {
  int rank = 0;
  std::string host;      // the same for all ranks that share its GPUs
  std::string gpu;       // what tells the host's GPUs apart: its UUID
  std::string gpu_name;  // for messages: "the GPU GPU-8f1c... of node3"
  bool share_device = false;
  int nccl_version = 0;
};

// The id that rank 0 gives. Throws InvalidArgument on every rank if two ranks are on one GPU and not both mean it, or
// have different NCCLs; and as `agreement`.
abi::UniqueId agree_on_id(const Arrival& own, const NcclLibrary& nccl, core::StoreAgreement& agreement);

// For a group without a store.
abi::UniqueId id_of_one(const NcclLibrary& nccl);

}  // namespace ddp::nccl_backend
