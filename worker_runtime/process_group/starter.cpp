#include "worker_runtime/process_group/starter.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>

namespace ddp::process_group {

namespace {

constexpr int kStartTimeField = 22;  // of /proc/<pid>/stat, counted from 1, in clock ticks since boot

// Of a pair of connected unix sockets the kernel remembers who made it.
pid_t maker_of_socket(const std::string& number) {
  int fd = -1;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), fd);
  if (error != std::errc{} || end != number.data() + number.size()) return 0;
  int domain = 0;
  socklen_t domain_length = sizeof domain;
  if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &domain_length) != 0 || domain != AF_UNIX) return 0;
  ucred maker{};
  socklen_t length = sizeof maker;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &maker, &length) == 0 ? maker.pid : 0;
}

// Empty where there is no such process.
std::string start_time_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto name_end = text.rfind(')');  // the program's name may hold blanks and brackets
  if (name_end == std::string::npos) return "";
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= kStartTimeField; ++i) fields >> field;
  return field;
}

}  // namespace

std::string name_of_starter(const std::optional<std::string>& pmi_fd) {
  pid_t pid = pmi_fd ? maker_of_socket(*pmi_fd) : 0;
  std::string time = pid > 0 ? start_time_of(pid) : "";
  if (time.empty()) {
    pid = ::getppid();
    time = start_time_of(pid);
  }
  return "of process " + std::to_string(pid) + " begun at " + time;
}

}  // namespace ddp::process_group
