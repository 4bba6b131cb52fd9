#include "worker_runtime/core/bootstrap/starter.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include "ddp/error.hpp"

namespace ddp::core {

namespace {

constexpr int kParentField = 4;      // of /proc/<pid>/stat, counted from 1
constexpr int kStartTimeField = 22;  // in clock ticks since boot

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

struct Process {
  std::string name;
  pid_t parent = 0;
  std::string start_time;
};

// Empty where there is no such process.
std::optional<Process> process_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto name_begin = text.find('(');
  const auto name_end = text.rfind(')');  // the program's name may hold blanks and brackets
  if (name_begin == std::string::npos || name_end == std::string::npos) return std::nullopt;
  Process process{text.substr(name_begin + 1, name_end - name_begin - 1), 0, ""};
  std::istringstream fields(text.substr(name_end + 1));
  std::string state;
  fields >> state >> process.parent;
  for (int i = kParentField + 1; i <= kStartTimeField; ++i) fields >> process.start_time;
  return process;
}

// hydra_pmi_proxy, or pmi_proxy of an older one.
bool is_proxy(const Process& process) { return process.name.find("pmi_proxy") != std::string::npos; }

std::string name_of(pid_t pid, const Process& process) {
  return "of process " + std::to_string(pid) + " begun at " + process.start_time;
}

}  // namespace

std::string name_of_starter(const std::optional<std::string>& pmi_fd) {
  const pid_t maker = pmi_fd ? maker_of_socket(*pmi_fd) : 0;
  if (const auto process = process_of(maker); process && is_proxy(*process)) return name_of(maker, *process);
  pid_t pid = ::getppid();
  for (auto process = process_of(pid); process; process = process_of(pid)) {
    if (is_proxy(*process)) return name_of(pid, *process);
    pid = process->parent;
  }
  throw InvalidArgument(
      "nothing says which job of MPICH's mpirun this rank is of: PMI_FD is no socket of Hydra's proxy here, and no "
      "process "
      "above this one is that proxy\nwhere: the environment of this process, read by init_process_group()\ntry:   "
      "MASTER_ADDR=127.0.0.1 and MASTER_PORT=a free port, for all ranks: `mpirun -genv MASTER_ADDR 127.0.0.1 -genv "
      "MASTER_PORT 29500`");
}

}  // namespace ddp::core
