#include "worker_runtime/cpu_backend/available_memory.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace ddp::cpu_backend {

namespace {

constexpr std::uint64_t kNoBound = std::numeric_limits<std::uint64_t>::max();

// Of a file with lines of a name, a number and perhaps a unit.
std::optional<std::uint64_t> number_named(const std::filesystem::path& file, std::string_view wanted) {
  std::ifstream lines(file);
  std::uint64_t number = 0;
  for (std::string name, rest; lines >> name >> number; std::getline(lines, rest)) {
    if (name == wanted) return number;
  }
  return std::nullopt;
}

std::uint64_t of_host(const std::filesystem::path& proc) {
  const auto kibibytes = number_named(proc / "meminfo", "MemAvailable:");
  return kibibytes ? *kibibytes * 1024 : kNoBound;
}

// The file is empty of numbers ("max") where there is no limit, and absent from the root.
std::uint64_t below_limit_of(const std::filesystem::path& group) {
  std::uint64_t limit = 0;
  std::uint64_t used = 0;
  if (!(std::ifstream(group / "memory.max") >> limit)) return kNoBound;
  if (!(std::ifstream(group / "memory.current") >> used)) return kNoBound;
  const std::uint64_t file_pages = number_named(group / "memory.stat", "file").value_or(0);
  const std::uint64_t shared_pages = number_named(group / "memory.stat", "shmem").value_or(0);  // counted as file, too
  const std::uint64_t page_cache = file_pages - std::min(file_pages, shared_pages);  // the kernel drops it at the limit
  used -= std::min(used, page_cache);
  return limit - std::min(limit, used);
}

// "/a/b" for a process in /sys/fs/cgroup/a/b.
std::string own_group(const std::filesystem::path& proc) {
  std::ifstream lines(proc / "self" / "cgroup");
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("0::/")) return line.substr(3);
  }
  return "/";
}

}  // namespace

std::uint64_t available_memory_bytes(const SystemFolders& folders) {
  std::uint64_t bytes = of_host(folders.proc);
  std::filesystem::path group = folders.cgroup;
  bytes = std::min(bytes, below_limit_of(group));
  for (const auto& name : std::filesystem::path(own_group(folders.proc)).relative_path()) {
    group /= name;
    bytes = std::min(bytes, below_limit_of(group));
  }
  return bytes;
}

}  // namespace ddp::cpu_backend
