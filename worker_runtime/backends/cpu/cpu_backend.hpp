// The backend for CPUs: shared memory among the ranks of a host, TCP between the hosts' leaders.
#pragma once

#include <memory>

#include "worker_runtime/core/bootstrap/meeting.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::cpu_backend {

using core::Meeting;

// Collective among the ranks that met. Throws as a collective does, and Error where the system refuses something.
std::unique_ptr<process_group::Backend> make_cpu_backend(const process_group::Membership& membership, Meeting meeting,
                                                         io::Deadline& deadline);

}  // namespace ddp::cpu_backend
