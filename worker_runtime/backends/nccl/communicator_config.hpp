// What a communicator is made with: the program's options in the form of the NCCL that is loaded.
//
// A field that NCCL has since a later version than the oldest is beyond `size` for an older one. `version` says which
// of the fields within `size` count, for those NCCLs that look at it.
//
// Source: NCCL, src/nccl.h.in of 2.19.3, 2.26.2, 2.27.3 and 2.30, and parseCommConfig() of src/init.cc.
// Threads: any.
#pragma once

#include <string>

#include "ddp/process_group.hpp"
#include "worker_runtime/backends/nccl/nccl_abi.hpp"
#include "worker_runtime/backends/nccl/nccl_library.hpp"

namespace ddp::nccl_backend {

class CommunicatorConfig {
 public:
  // Throws InvalidArgument for options out of range, and for one that this NCCL is too old for.
  CommunicatorConfig(NcclOptions options, const NcclLibrary& nccl)
      : CommunicatorConfig(std::move(options), nccl.version()) {}
  CommunicatorConfig(NcclOptions options, int nccl_version);

  // Valid until the process ends, as NCCL keeps the pointer to the name. `group_name` where the options have none.
  abi::Config for_group(const std::string& group_name) const;
  abi::Config for_setup(const std::string& group_name) const;  // the same, but its calls do not block

 private:
  NcclOptions options_;
  int nccl_version_;
};

}  // namespace ddp::nccl_backend
