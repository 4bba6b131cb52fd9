#include "benchmarks/common/sides/side_processes.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <system_error>

#include "benchmarks/common/measure.hpp"
#include "benchmarks/common/sides/rank_link.hpp"

namespace ddp::benchmarks {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kStartLimit{60};
constexpr std::chrono::seconds kAnswerLimit{120};

int ms_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(left, 0));
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// What it prints goes to stderr, away from the tables.
pid_t spawn(const std::vector<std::string>& words) {
  auto arguments = arguments_of(words);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, 1);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw SideFailure(words[0] + ": " + std::strerror(error));
  return pid;
}

std::string read_line(int socket, Clock::time_point deadline) {
  std::string text;
  while (text.empty() || text.back() != '\n') {
    pollfd ready{socket, POLLIN, 0};
    if (::poll(&ready, 1, ms_until(deadline)) <= 0) throw SideFailure("a rank does not answer");
    char buffer[8192];
    const auto got = ::read(socket, buffer, sizeof buffer);
    if (got <= 0) throw SideFailure("a rank has ended");
    text.append(buffer, static_cast<std::size_t>(got));
  }
  text.pop_back();
  return text;
}

void send_descriptor(int socket, int descriptor) {
  char byte = 'm';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  if (::sendmsg(socket, &message, MSG_NOSIGNAL) != 1) throw SideFailure("a rank has ended");
}

}  // namespace

SideProcesses::SideProcesses(SideCommand command) : command_(std::move(command)) {
  static int number = 0;
  socket_name_ = "ddp-benchmark-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
  connections_.assign(static_cast<std::size_t>(command_.ranks), -1);
  try {
    start();
    accept_ranks();
  } catch (...) {
    end();
    throw;
  }
}

SideProcesses::~SideProcesses() { end(); }

void SideProcesses::start() {
  shared_file_ = ::memfd_create("ddp-benchmark", MFD_CLOEXEC);
  if (shared_file_ < 0 || ::ftruncate(shared_file_, kSharedHeaderBytes) != 0) throw SideFailure("no shared memory");
  const auto [address, length] = abstract_address(socket_name_);
  listener_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::bind(listener_, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(listener_, command_.ranks) != 0) {
    throw SideFailure("can't listen at " + socket_name_);
  }
  for (const auto& [name, value] : command_.variables) ::setenv(name.c_str(), value.c_str(), 1);
  for (int rank = 0; rank < (command_.for_each_rank ? command_.ranks : 1); ++rank) {
    auto words = command_.words;
    for (std::string& word : words) {
      replace_all(word, "{socket}", socket_name_);
      replace_all(word, "{rank}", std::to_string(rank));
    }
    const pid_t pid = spawn(words);
    pids_.push_back(pid);
    pidfds_.push_back(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  }
  for (const auto& [name, value] : command_.variables) ::unsetenv(name.c_str());
}

void SideProcesses::accept_ranks() {
  const auto deadline = Clock::now() + kStartLimit;
  for (int accepted = 0; accepted < command_.ranks; ++accepted) {
    std::vector<pollfd> ready{{listener_, POLLIN, 0}};
    for (const int pidfd : pidfds_) ready.push_back({pidfd, POLLIN, 0});
    if (::poll(ready.data(), ready.size(), ms_until(deadline)) <= 0) throw SideFailure("its ranks do not start");
    if ((ready[0].revents & POLLIN) == 0) throw SideFailure("it ended at its start; what it said is above");
    const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) throw SideFailure("its ranks do not connect");
    const int rank = std::atoi(read_line(connection, deadline).c_str());
    if (rank < 0 || rank >= command_.ranks) {
      ::close(connection);
      throw SideFailure("it has another number of ranks");
    }
    connections_[static_cast<std::size_t>(rank)] = connection;
    send_descriptor(connection, shared_file_);
  }
}

std::vector<std::string> SideProcesses::ask(const std::string& line) {
  for (const int connection : connections_) {
    if (::send(connection, line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size())) {
      throw SideFailure("a rank has ended");
    }
  }
  const auto deadline = Clock::now() + kAnswerLimit;
  std::vector<std::string> out;
  for (const int connection : connections_) {
    out.push_back(read_line(connection, deadline));
    if (out.back().compare(0, 2, "ok") != 0) throw SideFailure(out.back());
  }
  return out;
}

std::vector<double> SideProcesses::measure(const Request& request) {
  std::vector<double> slowest(static_cast<std::size_t>(request.batches), 0);
  for (const auto& answer : ask(line_of(request))) {
    std::istringstream words(answer.substr(2));
    for (double& most : slowest) {
      double ns = 0;
      if (!(words >> ns)) throw SideFailure("a rank told too few figures");
      most = std::max(most, ns);
    }
  }
  return slowest;
}

void SideProcesses::release() { ask("release\n"); }

void SideProcesses::end() {
  for (const int connection : connections_) {
    if (connection >= 0) ::close(connection);
  }
  connections_.clear();
  const auto deadline = Clock::now() + 2 * kEndLimit;
  for (std::size_t i = 0; i < pids_.size(); ++i) {
    pollfd ended{pidfds_[i], POLLIN, 0};
    if (::poll(&ended, 1, ms_until(deadline)) <= 0) ::kill(pids_[i], SIGTERM);  // a launcher ends its ranks then
    if (::poll(&ended, 1, ms_until(deadline + kEndLimit)) <= 0) ::kill(pids_[i], SIGKILL);
    ::waitpid(pids_[i], nullptr, 0);
    ::close(pidfds_[i]);
  }
  pids_.clear(), pidfds_.clear();
  if (listener_ >= 0) ::close(listener_);
  if (shared_file_ >= 0) ::close(shared_file_);
  listener_ = shared_file_ = -1;
}

MeetingFolder::MeetingFolder() : path_(std::filesystem::temp_directory_path() / "ddp_benchmark_XXXXXX") {
  if (::mkdtemp(path_.data()) == nullptr) throw std::system_error(errno, std::generic_category(), path_);
}

MeetingFolder::~MeetingFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string MeetingFolder::new_path(const std::string& name) { return path_ + "/" + name + std::to_string(++count_); }

std::string own_program() { return std::filesystem::read_symlink("/proc/self/exe"); }

std::string sibling_program(const std::string& name) {
  return std::filesystem::path(own_program()).parent_path() / name;
}

std::string found_on_path(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const auto candidate = folder + "/" + name;
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

}  // namespace ddp::benchmarks
