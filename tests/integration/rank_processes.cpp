#include "tests/integration/rank_processes.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/unique_fd.hpp"
#include "rendezvous/port/port.hpp"
#include "rendezvous/store/server.hpp"

namespace ddp::testing {

namespace {

constexpr int kThrew = 3;  // exit code of a rank whose function threw

// Ends with the test, however that ends.
pid_t fork_process() {
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("fork failed");
  if (pid == 0) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  return pid;
}

[[noreturn]] void serve_store(int port_pipe, bool for_all_hosts) {
  boost::asio::io_context io;
  store::Server server(io, {.allow = for_all_hosts ? std::vector<std::string>{"any"} : std::vector<std::string>{}});
  const port::Port listening(io, {.addresses = {for_all_hosts ? "::" : "127.0.0.1"}},
                             {.store = [&server](base::UniqueFd socket, const sockaddr_storage& peer) {
                               server.adopt(std::move(socket), peer);
                             }});
  const std::uint16_t port = listening.number();
  if (::write(port_pipe, &port, sizeof(port)) != sizeof(port)) ::_exit(1);
  io.run();
  ::_exit(0);
}

// What a launcher tells a rank; the last two only where the ranks are on several hosts.
struct Told {
  int rank = 0;
  int size = 1;
  std::string store = "127.0.0.1";
  std::uint16_t port = 0;
  int local_rank = -1;
  int local_size = -1;
};

[[noreturn]] void run_rank(const Told& told, const RankProcesses::Body& body) {
  const int rank = told.rank;
  const auto set = [](const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); };
  set("RANK", std::to_string(rank));
  set("WORLD_SIZE", std::to_string(told.size));
  set("MASTER_ADDR", told.store);
  set("MASTER_PORT", std::to_string(told.port));
  set("TORCHELASTIC_USE_AGENT_STORE", "True");
  if (told.local_size > 0) {
    set("LOCAL_RANK", std::to_string(told.local_rank));
    set("LOCAL_WORLD_SIZE", std::to_string(told.local_size));
  }
  const bool had_failed = ::testing::Test::HasFailure();  // a failure of the test before the fork
  int code = 0;
  try {
    body(rank);
    if (::testing::Test::HasFailure() && !had_failed) code = 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d threw: %s\n", rank, error.what());
    code = kThrew;
  }
  std::exit(code);  // not _exit: a sanitizer looks for leaks now
}

}  // namespace

void RankProcesses::start_store(const std::function<pid_t()>& fork, bool for_all_hosts) {
  std::array<int, 2> pipe{};
  if (::pipe(pipe.data()) != 0) throw std::runtime_error("pipe failed");
  const base::UniqueFd reading(pipe[0]);
  base::UniqueFd writing(pipe[1]);
  store_ = fork();
  if (store_ == 0) serve_store(writing.get(), for_all_hosts);
  writing.reset();
  if (::read(reading.get(), &port_, sizeof(port_)) != sizeof(port_)) throw std::runtime_error("no store started");
}

RankProcesses::RankProcesses(int size, const Body& body, const std::vector<int>& absent) {
  start_store(fork_process, false);
  for (int rank = 0; rank < size; ++rank) {
    const bool is_absent = std::find(absent.begin(), absent.end(), rank) != absent.end();
    ranks_.push_back(is_absent ? 0 : fork_process());
    if (!is_absent && ranks_.back() == 0) run_rank({.rank = rank, .size = size, .port = port_}, body);
  }
}

RankProcesses::RankProcesses(const Places& places, const Body& body, const std::vector<int>& absent) {
  start_store([&] { return places.hosts.fork_on(0); }, true);
  const auto& host_of = places.host_of;
  for (int rank = 0; rank < static_cast<int>(host_of.size()); ++rank) {
    const int host = host_of[static_cast<std::size_t>(rank)];
    const bool is_absent = std::find(absent.begin(), absent.end(), rank) != absent.end();
    ranks_.push_back(is_absent ? 0 : places.hosts.fork_on(host));
    if (is_absent || ranks_.back() != 0) continue;
    const Told told{.rank = rank,
                    .size = static_cast<int>(host_of.size()),
                    .store = places.store.empty() ? test::Hosts::ipv4(0) : places.store,
                    .port = port_,
                    .local_rank = static_cast<int>(std::count(host_of.begin(), host_of.begin() + rank, host)),
                    .local_size = static_cast<int>(std::count(host_of.begin(), host_of.end(), host))};
    run_rank(told, body);
  }
}

RankProcesses::~RankProcesses() {
  ranks_.push_back(store_);
  for (const pid_t pid : ranks_) {
    if (pid == 0) continue;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
}

void RankProcesses::kill(int rank) { ::kill(ranks_.at(static_cast<std::size_t>(rank)), SIGKILL); }

void RankProcesses::stop(int rank) {
  const pid_t pid = ranks_.at(static_cast<std::size_t>(rank));
  ::kill(pid, SIGSTOP);
  int status = 0;
  if (::waitpid(pid, &status, WUNTRACED) != pid || !WIFSTOPPED(status))
    throw std::runtime_error("a rank ended, not stopped");
}

void RankProcesses::go_on(int rank) { ::kill(ranks_.at(static_cast<std::size_t>(rank)), SIGCONT); }

int RankProcesses::wait_status(int rank) {
  pid_t& pid = ranks_.at(static_cast<std::size_t>(rank));
  const base::UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd polled{process.get(), POLLIN, 0};
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(kPatience);
  if (::poll(&polled, 1, static_cast<int>(limit.count())) != 1) {
    ADD_FAILURE() << "rank " << rank << " hangs";
    ::kill(pid, SIGKILL);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  pid = 0;
  return status;
}

void RankProcesses::expect_success(int rank) { EXPECT_EQ(wait_status(rank), 0) << "the wait status of rank " << rank; }

void RankProcesses::expect_killed(int rank, int signal) {
  EXPECT_EQ(wait_status(rank), signal) << "the wait status of rank " << rank;
}

void run_ranks(int size, const RankProcesses::Body& body) {
  RankProcesses ranks(size, body);
  for (int rank = 0; rank < size; ++rank) ranks.expect_success(rank);
}

void run_ranks(const Places& places, const RankProcesses::Body& body) {
  RankProcesses ranks(places, body);
  for (int rank = 0; rank < static_cast<int>(places.host_of.size()); ++rank) ranks.expect_success(rank);
}

void wait_until(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) throw std::runtime_error("waited in vain for another process");
    ::sched_yield();
  }
}

std::size_t open_pidfds() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry, gone).string().find("pidfd") != std::string::npos) ++count;
  }
  return count;
}

std::size_t connections_to(std::uint16_t port) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    const int fd = std::stoi(entry.path().filename());
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    if (peer.sin_family == AF_INET && ntohs(peer.sin_port) == port) ++count;
  }
  return count;
}

}  // namespace ddp::testing
