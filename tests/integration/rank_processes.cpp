#include "tests/integration/rank_processes.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
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
#include <string>

#include "rendezvous/io/unique_fd.hpp"
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

[[noreturn]] void serve_store(int port_pipe) {
  boost::asio::io_context io;
  store::Server server(io, {});
  const port::Port listening(io, {.addresses = {"127.0.0.1"}},
                             {.store = [&server](io::UniqueFd socket, const sockaddr_storage& peer) {
                               server.adopt(std::move(socket), peer);
                             }});
  const std::uint16_t port = listening.number();
  if (::write(port_pipe, &port, sizeof(port)) != sizeof(port)) ::_exit(1);
  io.run();
  ::_exit(0);
}

[[noreturn]] void run_rank(int rank, int size, std::uint16_t port, const RankProcesses::Body& body) {
  ::setenv("RANK", std::to_string(rank).c_str(), 1);
  ::setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  int code = 0;
  try {
    body(rank);
    if (::testing::Test::HasFailure()) code = 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d threw: %s\n", rank, error.what());
    code = kThrew;
  }
  std::exit(code);  // not _exit: a sanitizer looks for leaks now
}

}  // namespace

RankProcesses::RankProcesses(int size, const Body& body, const std::vector<int>& absent) {
  std::array<int, 2> pipe{};
  if (::pipe(pipe.data()) != 0) throw std::runtime_error("pipe failed");
  const io::UniqueFd reading(pipe[0]);
  io::UniqueFd writing(pipe[1]);
  store_ = fork_process();
  if (store_ == 0) serve_store(writing.get());
  writing.reset();
  std::uint16_t port = 0;
  if (::read(reading.get(), &port, sizeof(port)) != sizeof(port)) throw std::runtime_error("the store did not start");

  for (int rank = 0; rank < size; ++rank) {
    const bool is_absent = std::find(absent.begin(), absent.end(), rank) != absent.end();
    ranks_.push_back(is_absent ? 0 : fork_process());
    if (!is_absent && ranks_.back() == 0) run_rank(rank, size, port, body);
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

int RankProcesses::wait_status(int rank) {
  pid_t& pid = ranks_.at(static_cast<std::size_t>(rank));
  const io::UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
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

void RankProcesses::expect_killed(int rank) {
  EXPECT_EQ(wait_status(rank), SIGKILL) << "the wait status of rank " << rank;
}

void run_ranks(int size, const RankProcesses::Body& body) {
  RankProcesses ranks(size, body);
  for (int rank = 0; rank < size; ++rank) ranks.expect_success(rank);
}

void wait_until(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) throw std::runtime_error("waited in vain for another process");
    ::sched_yield();
  }
}

}  // namespace ddp::testing
