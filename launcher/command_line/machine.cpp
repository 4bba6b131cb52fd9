#include "launcher/command_line/machine.hpp"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "launcher/command_line/visible_devices.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kTextBytesMax = 1u << 20;  // of a file of settings; what comes after is not read
constexpr int kThreadsPerCoreMax = 8;            // of any processor so far

int nvidia_device_count() {
  int count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/dev", error), end; !error && it != end; it.increment(error)) {
    const auto name = it->path().filename().string();
    constexpr std::string_view kPrefix = "nvidia";
    if (name.size() > kPrefix.size() && name.compare(0, kPrefix.size(), kPrefix) == 0 &&
        std::all_of(name.begin() + kPrefix.size(), name.end(), [](char c) { return c >= '0' && c <= '9'; }))
      ++count;
  }
  return count;
}

// Intel's vendor id, at a device that renders.
int intel_device_count() {
  int count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/sys/class/drm", error), end; !error && it != end; it.increment(error)) {
    std::string vendor;
    if (it->path().filename().string().rfind("renderD", 0) == 0 &&
        std::ifstream(it->path() / "device/vendor") >> vendor && vendor == "0x8086")
      ++count;
  }
  return count;
}

int usable_cpu_count() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));  // more CPUs than a cpu_set_t holds
}

// A scheduler that gives each of its tasks one core, which may be several hyper-threads, leaves so much to all workers.
bool is_kept_to_one_core() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) == sysconf(_SC_NPROCESSORS_ONLN)) return false;
  const int count = CPU_COUNT(&set);
  if (count > kThreadsPerCoreMax) return false;
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) {
      std::string threads;
      std::ifstream("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list") >> threads;
      cores.insert(threads.empty() ? std::to_string(cpu) : threads);
    }
  return cores.size() == 1;
}

// So much of it as the kernel looks at, with the end of the line; empty: it has no end there.
std::string first_line_of(const std::string& path) {
  std::string line(256, '\0');
  std::ifstream(path, std::ios::binary).read(line.data(), static_cast<std::streamsize>(line.size()));
  return line.substr(0, line.find('\n') + 1);
}

FileKind kind_of_executable(const std::string& path) {
  const auto line = first_line_of(path);
  if (line.starts_with("#!") && line.ends_with("\r\n")) return FileKind::windows_script;
  return names_python(line) ? FileKind::python_script : FileKind::executable;
}

FileKind kind_of(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return FileKind::missing;
  if (S_ISDIR(info.st_mode)) return FileKind::directory;
  if (access(path.c_str(), X_OK) != 0) return FileKind::not_executable;
  return S_ISREG(info.st_mode) ? kind_of_executable(path) : FileKind::executable;
}

std::optional<std::string> text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kTextBytesMax, '\0');
  if (!file || (!file.read(text.data(), static_cast<std::streamsize>(text.size())) && !file.eof())) return {};
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

}  // namespace

int visible_gpu_count(int present, const std::optional<std::string>& cuda_visible_devices) {
  if (!cuda_visible_devices) return present;
  int count = 0;
  for (const auto& entry : entries_of_visible_devices(*cuda_visible_devices)) {
    if (entry.rfind("GPU-", 0) == 0 || entry.rfind("MIG-", 0) == 0) {
      ++count;
      continue;
    }
    int index = -1;
    const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), index);
    if (error != std::errc{} || end != entry.data() + entry.size() || index < 0 || index >= present) break;
    ++count;
  }
  return present == 0 ? 0 : count;
}

Machine this_machine(const EnvironmentLookup& environment) {
  return {visible_gpu_count(nvidia_device_count(), environment("CUDA_VISIBLE_DEVICES")),
          intel_device_count(),
          usable_cpu_count(),
          kind_of,
          is_kept_to_one_core(),
          [environment](const std::optional<std::string>& file) { return security::find_tokens(file, environment); },
          text_of};
}

}  // namespace ddp::launcher
