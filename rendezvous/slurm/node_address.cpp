#include "rendezvous/slurm/node_address.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/deadline.hpp"
#include "base/pidfd.hpp"
#include "base/unique_fd.hpp"

namespace ddp::slurm {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kOutputBytesMax = 64u << 10;  // of one node; what comes after is not read
constexpr std::size_t kErrorBytesMax = 200;         // of it, in a message
constexpr std::size_t kListBytesMax = 100u << 10;   // the kernel takes no longer argument than 128 KiB

// scontrol, with its output in a pipe, and nothing of the signals that this thread blocks or this program ignores.
class Scontrol {
 public:
  // Of this list of nodes. Leaves in error() why it could not be started.
  explicit Scontrol(const std::string& nodes) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
      error_ = errno;
      return;
    }
    output_ = base::UniqueFd(ends[0]);
    const base::UniqueFd input(ends[1]);
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&files, input.get(), STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&files, input.get(), STDERR_FILENO);
    sigset_t all, none;
    ::sigfillset(&all);
    ::sigemptyset(&none);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setsigdefault(&attributes, &all);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    std::string words[] = {"scontrol", "-o", "show", "node", nodes};
    char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), words[4].data(), nullptr};
    error_ = ::posix_spawnp(&pid_, arguments[0], &files, &attributes, arguments, environ);
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&files);
    if (error_ != 0) return;
    end_ = base::open_pidfd(pid_);
    is_reaped_ = !end_ && errno == ESRCH;  // by the program, which waits for any child, or for none at all
  }

  ~Scontrol() {
    if (error_ != 0 || is_reaped_) return;
    if (end_) {
      ::syscall(SYS_pidfd_send_signal, end_.get(), SIGKILL, nullptr, 0);
    } else {
      ::kill(pid_, SIGKILL);
    }
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  Scontrol(const Scontrol&) = delete;

  int error() const { return error_; }

  // All it writes until it closes its output; false where it has not within the deadline.
  bool read(std::string& text, std::size_t bytes_max, base::Deadline& deadline) {
    char bytes[4096];
    while (true) {
      pollfd polled{output_.get(), POLLIN, 0};
      const int count = ::poll(&polled, 1, deadline.poll_timeout_ms(Clock::now()));
      if (count <= 0) {
        if (deadline.passed(Clock::now())) return false;
        continue;
      }
      const auto length = ::read(output_.get(), bytes, sizeof bytes);
      if (length < 0 && errno == EINTR) continue;
      if (length <= 0 || text.size() >= bytes_max) return true;
      text.append(bytes, static_cast<std::size_t>(length));
    }
  }

 private:
  base::UniqueFd output_;
  base::UniqueFd end_;  // a pidfd
  pid_t pid_ = -1;
  bool is_reaped_ = false;
  int error_ = 0;
};

std::string first_line(const std::string& text) { return text.substr(0, std::min(text.find('\n'), kErrorBytesMax)); }

}  // namespace

std::optional<std::string> node_address_in(std::string_view output) {
  constexpr std::string_view kField = " NodeAddr=";
  const auto at = output.find(kField);  // the first: what operators write about a node comes after it
  if (at == std::string_view::npos) return std::nullopt;
  const auto value = output.substr(at + kField.size());
  const auto address = value.substr(0, value.find_first_of(" \n"));
  if (address.empty() || address == "(null)") return std::nullopt;
  return std::string(address);
}

NodeAddress ask_node_address(const std::string& node, std::chrono::milliseconds limit) {
  auto answer = ask_node_addresses({node}, limit);
  if (answer.of_node.empty()) return {"", answer.error};
  return {answer.of_node.begin()->second, ""};
}

std::map<std::string, std::string> node_addresses_in(std::string_view output) {
  constexpr std::string_view kName = "NodeName=";
  std::map<std::string, std::string> out;
  while (!output.empty()) {
    const auto line = output.substr(0, output.find('\n'));
    output.remove_prefix(std::min(line.size() + 1, output.size()));
    if (!line.starts_with(kName)) continue;
    const auto name = line.substr(kName.size(), line.find(' ') - kName.size());
    if (const auto address = node_address_in(line)) out.emplace(name, *address);
  }
  return out;
}

NodeAddresses ask_node_addresses(const std::vector<std::string>& nodes, std::chrono::milliseconds limit) {
  std::string list;
  for (const auto& node : nodes) {
    if (node.empty() || node.front() == '-') return {{}, "'" + node + "' is no name of a node"};
    list += (list.empty() ? "" : ",") + node;
  }
  const std::string command = "`scontrol -o show node " + list.substr(0, kErrorBytesMax) + "`";
  if (list.size() > kListBytesMax) return {{}, command + " can't be run: the list of nodes is too long"};
  const auto now = Clock::now();
  base::Deadline deadline(now, now + limit);
  Scontrol scontrol(list);
  if (scontrol.error() != 0) return {{}, command + " can't be run: " + std::strerror(scontrol.error())};
  std::string text;
  if (!scontrol.read(text, nodes.size() * kOutputBytesMax, deadline))
    return {{}, command + " has not answered within " + std::to_string(limit.count()) + " ms"};
  auto found = node_addresses_in(text);
  if (!found.empty()) return {std::move(found), ""};
  return {{}, command + " names no NodeAddr" + (text.empty() ? ", it says nothing" : ": " + first_line(text))};
}

}  // namespace ddp::slurm
