// A group whose ranges may be in host memory and on a device: each call goes to the backend of its ranges, everything
// else to the device's. When one of the two fails, so does the other.
#pragma once

#include <memory>

#include "worker_runtime/process_group/backend.hpp"

namespace ddp::process_group {

// Requires that `host` is of host memory, and `device` not.
std::unique_ptr<Backend> make_two_backends(std::unique_ptr<Backend> host, std::unique_ptr<Backend> device);

}  // namespace ddp::process_group
