// How much memory this process can still get before the kernel's out-of-memory killer comes: the least of what the host
// has available and what is left below the limits of its control groups (version 2) and their parents.
//
// An estimate: others take memory at the same time. Threads: any.
// Source: proc_meminfo(5), cgroups(7), the kernel's Documentation/admin-guide/cgroup-v2.rst.
#pragma once

#include <cstdint>
#include <filesystem>

namespace ddp::cpu_backend {

struct SystemFolders {
  std::filesystem::path proc = "/proc";
  std::filesystem::path cgroup = "/sys/fs/cgroup";
};

// What a file does not say sets no bound.
std::uint64_t available_memory_bytes(const SystemFolders& folders = {});

}  // namespace ddp::cpu_backend
