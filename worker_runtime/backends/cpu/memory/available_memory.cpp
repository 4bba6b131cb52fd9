#include "worker_runtime/backends/cpu/memory/available_memory.hpp"

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

// What a version of cgroups calls it.
struct Names {
  const char* limit;
  const char* used;
  const char* file_pages;    // in memory.stat
  const char* shared_pages;  // there; counted as those of files, too
};

constexpr Names kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem"};
constexpr Names kVersion2{"memory.max", "memory.current", "file", "shmem"};

// The file is empty of numbers ("max") where there is no limit, and absent from the root.
std::uint64_t below_limit_of(const std::filesystem::path& group, const Names& names) {
  std::uint64_t limit = 0;
  std::uint64_t used = 0;
  if (!(std::ifstream(group / names.limit) >> limit)) return kNoBound;
  if (!(std::ifstream(group / names.used) >> used)) return kNoBound;
  const std::uint64_t file_pages = number_named(group / "memory.stat", names.file_pages).value_or(0);
  const std::uint64_t shared_pages = number_named(group / "memory.stat", names.shared_pages).value_or(0);
  const std::uint64_t page_cache = file_pages - std::min(file_pages, shared_pages);  // the kernel drops it at the limit
  used -= std::min(used, page_cache);
  return limit - std::min(limit, used);
}

// "/a/b" for a process in the group a/b of the hierarchy that `controllers` name: "memory", or nothing for version 2.
std::string own_group(const std::filesystem::path& proc, const std::string& controllers) {
  std::ifstream lines(proc / "self" / "cgroup");
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find(":" + controllers + ":/");
    if (at == line.find(':')) return line.substr(at + controllers.size() + 2);
  }
  return "/";
}

// Below the limits of all groups that this process is in, from the root on.
std::uint64_t below_limits(std::filesystem::path group, const std::filesystem::path& own, const Names& names) {
  std::uint64_t bytes = below_limit_of(group, names);
  for (const auto& name : own.relative_path()) {
    group /= name;
    bytes = std::min(bytes, below_limit_of(group, names));
  }
  return bytes;
}

}  // namespace

std::uint64_t available_memory_bytes(const SystemFolders& folders) {
  return std::min({of_host(folders.proc), below_limits(folders.cgroup, own_group(folders.proc, ""), kVersion2),
                   below_limits(folders.cgroup / "memory", own_group(folders.proc, "memory"), kVersion1)});
}

}  // namespace ddp::cpu_backend
