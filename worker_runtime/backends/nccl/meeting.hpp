// How the ranks of a group meet before NCCL connects them: through the store each says which GPU it is on and which
// NCCL it has, rank 0 gives the unique id, and the last one to come lets all go on, or all throw alike.
//
// Every rank writes and reads a handful of keys, however large the group.
//
// Threads: one caller.
#pragma once

#include <string>

#include "rendezvous/io/deadline.hpp"
#include "rendezvous/store/client.hpp"
#include "worker_runtime/backends/nccl/nccl_library.hpp"

namespace ddp::nccl_backend {

struct Arrival {
  int rank = 0;
  int size = 1;
  std::string host;      // the same for all ranks that share its GPUs
  std::string gpu;       // what tells the host's GPUs apart: its UUID
  std::string gpu_name;  // for messages: "the GPU GPU-8f1c... of node3"
  bool share_device = false;
  int nccl_version = 0;
};

// Throws InvalidArgument where two ranks are on one GPU and not both mean it, or have different NCCLs: on every rank
// alike. TimeoutError, which names the missing ranks, at the deadline.
abi::UniqueId meet(const Arrival& own, const NcclLibrary& nccl, store::Client& store, const std::string& key_prefix,
                   const io::Deadline& deadline);

// For a group without a store.
abi::UniqueId id_of_one(const NcclLibrary& nccl);

}  // namespace ddp::nccl_backend
