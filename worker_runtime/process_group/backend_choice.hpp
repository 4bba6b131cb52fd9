// Which backends InitOptions::backend asks for.
//
// Pure; any thread.
#pragma once

#include <string>

namespace ddp::process_group {

struct BackendChoice {
  bool cpu = false;
  bool nccl = false;
};

// "cpu" or nothing, "nccl", or a device and a backend for each: "cpu:cpu,cuda:nccl" in any order. Source of the form:
// torch.distributed.init_process_group. Throws InvalidArgument.
BackendChoice backend_choice(const std::string& text);

}  // namespace ddp::process_group
