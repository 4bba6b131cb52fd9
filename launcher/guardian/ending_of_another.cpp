#include "launcher/guardian/ending_of_another.hpp"

#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace ddp::launcher::guardian {
namespace {

struct PidfdInfo {  // pidfd_info of linux/pidfd.h, its first version
  std::uint64_t mask, cgroup_id;
  std::uint32_t pid, tgid, ppid, ruid, rgid, euid, egid, suid, sgid, fsuid, fsgid;
  std::int32_t exit_code;
};
static_assert(sizeof(PidfdInfo) == 64);

constexpr std::uint64_t kInfoExit = 1 << 3;                     // PIDFD_INFO_EXIT
constexpr unsigned long kGetInfo = _IOWR(0xFF, 11, PidfdInfo);  // PIDFD_GET_INFO

// The last field is the exit code. The kernel says 0 to those that may not know it.
std::optional<int> status_of_zombie(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string stat{std::istreambuf_iterator<char>(file), {}};
  const auto name_end = stat.rfind(") Z ");
  if (name_end == std::string::npos) return {};
  std::istringstream fields(stat.substr(name_end));
  int last = 0;
  for (std::string field; fields >> field;) last = std::atoi(field.c_str());
  return last;
}

bool is_reaped(int pidfd) { return ::syscall(SYS_pidfd_send_signal, pidfd, 0, nullptr, 0) != 0; }

}  // namespace

std::optional<int> wait_status_of(int pidfd, pid_t pid) {
  // Nobody else has the number before it is reaped.
  if (const auto status = status_of_zombie(pid); status && !is_reaped(pidfd)) return status;
  PidfdInfo info{};
  info.mask = kInfoExit;
  if (::ioctl(pidfd, kGetInfo, &info) != 0 || (info.mask & kInfoExit) == 0) return {};
  return info.exit_code;
}

}  // namespace ddp::launcher::guardian
