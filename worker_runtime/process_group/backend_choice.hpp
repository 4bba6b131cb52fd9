// Which backends InitOptions::backend asks for.
//
// Pure; any thread.
#pragma once

#include <span>
#include <string>

#include "worker_runtime/core/registry.hpp"

namespace ddp::process_group {

// At least one of them.
struct BackendChoice {
  const core::BackendEntry* host = nullptr;    // works on the memory of the host
  const core::BackendEntry* device = nullptr;  // works on the memory of another device
};

// A backend's name, a device and a name, or a list of two of these: "cpu", "nccl", "cpu:cpu,cuda:nccl" in any order.
// Empty text means "cpu". Source of the form: torch.distributed.init_process_group. Throws InvalidArgument for other
// text, and for a backend that this build does not have.
BackendChoice backend_choice(const std::string& text, std::span<const core::BackendEntry> backends);

}  // namespace ddp::process_group
