#include "launcher/guardian/cgroup.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <vector>

#include "base/unique_fd.hpp"

namespace ddp::launcher::guardian {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStart = "ddprun_guardian_";  // no name that a person gives a group
constexpr int kEmptyLimitMs = 2'000;                // for each group: a large process takes a while to end

// Empty too if it can't be read, as when a controller is switched off meanwhile.
std::string text_of_file(const std::string& path) {
  try {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  } catch (const std::ios_base::failure&) {
    return {};
  }
}

bool has_word(std::string_view list, std::string_view word) {
  for (std::size_t at = 0; at <= list.size();) {
    const auto end = std::min(list.find(',', at), list.size());
    if (list.substr(at, end - at) == word) return true;
    at = end + 1;
  }
  return false;
}

// The path that /proc/PID/cgroup has for the hierarchy with this controller; "": for version 2.
std::optional<std::string> group_of(std::string_view cgroups, std::string_view controller) {
  std::istringstream lines{std::string(cgroups)};
  for (std::string line; std::getline(lines, line);) {  // "4:memory:/job/step" or "0::/job/step"
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = std::string_view(line).substr(first + 1, second - first - 1);
    if (controller.empty() ? controllers.empty() : has_word(controllers, controller)) return line.substr(second + 1);
  }
  return {};
}

struct Mount {
  std::string root;   // the group that the mount shows as its root
  std::string point;  // where it is mounted
};

// "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"
std::optional<Mount> mount_of(std::string_view mounts, std::string_view type, std::string_view option) {
  std::istringstream lines{std::string(mounts)};
  for (std::string line; std::getline(lines, line);) {
    const auto separator = line.find(" - ");
    if (separator == std::string::npos || line.compare(separator + 3, type.size(), type) != 0) continue;
    std::istringstream before(line.substr(0, separator)), after(line.substr(separator + 3));
    std::string skipped, found_type, options;
    Mount mount;
    before >> skipped >> skipped >> skipped >> mount.root >> mount.point;
    after >> found_type >> skipped >> options;
    if (found_type == type && (option.empty() || has_word(options, option))) return mount;
  }
  return {};
}

// Empty if the mount does not show the group.
std::string folder_of(const Mount& mount, const std::string& group) {
  const auto root = mount.root == "/" ? std::string() : mount.root;
  const bool is_below = group.compare(0, root.size(), root) == 0 &&
                        (group.size() == root.size() || group[root.size()] == '/') &&
                        group.find("/..") == std::string::npos;
  if (!is_below) return {};
  const auto rest = group.substr(root.size());
  return mount.point + (rest == "/" ? "" : rest);
}

CgroupFolders own_folders() {
  return cgroup_folders(text_of_file("/proc/self/cgroup"), text_of_file("/proc/self/mountinfo"));
}

// Returns errno.
int write_to(const std::string& path, std::string_view text) {
  const base::UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return file && ::write(file.get(), text.data(), text.size()) >= 0 ? 0 : errno;
}

// The group and those below it, deepest first. A group is a folder without folders, or of such.
void remove_empty_groups(const std::string& path) {
  if (::rmdir(path.c_str()) == 0) return;
  std::vector<std::string> folders{path};
  std::error_code ignored;
  for (fs::recursive_directory_iterator entry(path, ignored), end; entry != end; entry.increment(ignored))
    if (entry->is_directory(ignored)) folders.push_back(entry->path());
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder) ::rmdir(folder->c_str());
}

// "populated 0" is a line of cgroup.events, which tells of a change by POLLPRI.
// It may come a little after waitpid has told of the last process.
void wait_until_empty(const std::string& path, int limit_ms) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::milliseconds(limit_ms);
  const base::UniqueFd events(::open((path + "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
  while (events) {
    char text[256] = {};
    if (::pread(events.get(), text, sizeof text - 1, 0) <= 0 || std::strstr(text, "populated 0") != nullptr) return;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wait{events.get(), POLLPRI, 0};
    if (left <= 0 || ::poll(&wait, 1, static_cast<int>(left)) <= 0) return;
  }
}

}  // namespace

CgroupFolders cgroup_folders(std::string_view cgroups, std::string_view mounts) {
  CgroupFolders out;
  const auto unified = group_of(cgroups, ""), memory = group_of(cgroups, "memory");
  if (const auto mount = mount_of(mounts, "cgroup2", ""); unified && mount) {
    out.unified = folder_of(*mount, *unified);
    if (!out.unified.empty()) out.unified_mount = mount->point;
  }
  if (const auto mount = mount_of(mounts, "cgroup", "memory"); memory && mount) out.memory = folder_of(*mount, *memory);
  return out;
}

GuardianCgroup::GuardianCgroup() {
  const auto own = own_folders().unified;
  if (own.empty()) {
    why_not_ = "no cgroup of version 2 is mounted";
    return;
  }
  base::for_each_left_folder(own, kStart, [this](const std::string& path) {
    kill_cgroup(path);
    remove_cgroup(path, kEmptyLimitMs);
    ++swept_count_;
  });
  // To move a process, the kernel wants a write to the nearest group that is above both.
  if (::access((own + "/cgroup.procs").c_str(), W_OK) != 0) {
    why_not_ = own + " is not delegated to this user: " + std::strerror(errno);
    return;
  }
  try {
    folder_ = base::make_locked_folder(own, kStart);
  } catch (const std::system_error& error) {
    why_not_ = std::string(error.what());
    return;
  }
  // Below a group of threads there is no place for processes.
  if (!folder_.lock || text_of_file(path() + "/cgroup.type").rfind("domain invalid", 0) == 0) {
    why_not_ = own + (folder_.lock ? " has threads, not processes" : " can't be locked");
    ::rmdir(path().c_str());
    folder_ = {};
  }
}

GuardianCgroup::~GuardianCgroup() {
  if (path().empty()) return;
  kill_cgroup(path());
  remove_cgroup(path(), kEmptyLimitMs);
}

void enter_cgroup(const std::string& path) noexcept { static_cast<void>(write_to(path + "/cgroup.procs", "0")); }

void kill_cgroup(const std::string& path) { static_cast<void>(write_to(path + "/cgroup.kill", "1")); }  // Linux 5.14

void remove_cgroup(const std::string& path, int limit_ms) {
  wait_until_empty(path, limit_ms);
  remove_empty_groups(path);
}

void leave_cgroup(const std::string& path) {
  enter_cgroup(fs::path(path).parent_path());
  remove_cgroup(path, kEmptyLimitMs);
}

OutOfMemoryKills::OutOfMemoryKills() {
  const auto own = own_folders();
  if (!own.memory.empty()) {
    file_ = own.memory + "/memory.oom_control";
    return;
  }
  for (auto folder = own.unified; folder.size() >= own.unified_mount.size() && !folder.empty();
       folder = fs::path(folder).parent_path()) {
    file_ = folder + "/memory.events";
    if (::access(file_.c_str(), R_OK) == 0) return;
  }
  file_.clear();
}

std::optional<long> OutOfMemoryKills::count() const {
  return file_.empty() ? std::nullopt : out_of_memory_kills(text_of_file(file_));
}

std::optional<long> out_of_memory_kills(std::string_view text) {
  std::istringstream pairs{std::string(text)};
  std::string name;
  for (long value = 0; pairs >> name >> value;)
    if (name == "oom_kill") return value;
  return {};
}

}  // namespace ddp::launcher::guardian
