// The backend for CPUs: shared memory among the ranks of a host, TCP between the hosts' leaders.
#pragma once

#include <memory>

#include "worker_runtime/core/bootstrap/bootstrap.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::cpu_backend {

using core::Meeting;

// As core::BackendEntry says. Takes the meeting out of `bootstrap`.
std::unique_ptr<process_group::Backend> make_cpu_backend(core::Bootstrap& bootstrap, const InitOptions& options,
                                                         base::Deadline& deadline);

// The file in which the ranks of a host share memory. Throws std::system_error.
base::UniqueFd make_shared_file(const core::HostLayout& layout, int host);

}  // namespace ddp::cpu_backend
