// Makes the backend `nccl`: collectives of the process group on the memory of one GPU, by NCCL. See group.hpp.
//
// Fork: as ProcessGroup: a forked child has no part in it, and leaks it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "rendezvous/io/deadline.hpp"
#include "rendezvous/store/client.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::nccl_backend {

struct BackendOptions {
  std::optional<int> device{};  // as the process sees it; without it, by LOCAL_RANK
  bool share_device = false;    // whether ranks of a host may be on one
  NcclOptions communicators{};
};

// Collective. Loads NCCL, picks a GPU and makes it the calling thread's, meets the others through `store` (null: the
// group has one rank) under `key_prefix`, which is this group's own, and connects.
//
// Throws InvalidArgument where there is no GPU for this rank, or two ranks are on one; TimeoutError at the deadline;
// Error where NCCL can't be had or refuses.
std::unique_ptr<process_group::Backend> make_nccl_backend(const process_group::Membership& membership,
                                                          store::Client* store, const std::string& key_prefix,
                                                          const BackendOptions& options, io::Deadline& deadline);

// What the library does with the memory of a GPU where it has no group.
std::shared_ptr<process_group::DeviceMemory> memory_of_device(int device);

}  // namespace ddp::nccl_backend
