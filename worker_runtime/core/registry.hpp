// The backends of this build. Each has an entry in the one table in worker_runtime/backends/registered.cpp, so core and
// process_group include no backend, and a linker drops none.
//
// How to add a backend: docs/backends.md.
#pragma once

#include <memory>
#include <span>

#include "base/deadline.hpp"
#include "ddp/memory.hpp"
#include "ddp/process_group.hpp"
#include "worker_runtime/core/bootstrap/bootstrap.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::core {

struct BackendEntry {
  const char* name;     // in InitOptions::backend: "nccl"
  Device::Kind device;  // whose memory it works on

  // Collective: makes this rank's part of the backend after the ranks have met, and waits for the other ranks until the
  // deadline. `options` say which device. Throws InvalidArgument if this rank has no such device, and as a collective.
  // Null if this build does not have the backend: then `absence` says why, and what to try.
  std::unique_ptr<process_group::Backend> (*make)(Bootstrap& bootstrap, const InitOptions& options,
                                                  base::Deadline& deadline);
  const char* absence = nullptr;

  // Makes the file that the ranks of a host share; null if the backend needs none.
  base::UniqueFd (*make_shared_file)(const HostLayout& layout, int host) = nullptr;
};

std::span<const BackendEntry> registered_backends();

}  // namespace ddp::core
