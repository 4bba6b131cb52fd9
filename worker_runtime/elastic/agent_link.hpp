// The worker's end of the socket to its agent, and a thread that listens to it: a round is over, here is your seat, there
// is none.
//
// Threads: one of its own, which calls RoundOverHandler. The rest is one thread's.
// Fork:    a forked child has no part in it, and leaks it.
// Protocol: docs/worker_link.md.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "rendezvous/io/unique_fd.hpp"
#include "rendezvous/worker_link/message.hpp"
#include "worker_runtime/process_group/environment.hpp"
#include "worker_runtime/process_group/fork_guard.hpp"

namespace ddp::elastic {

// The inherited socket, now close-on-exec, or empty where there is none of this process's own: no agent started it, or the
// variable names a descriptor that is something else here.
io::UniqueFd take_inherited_socket(const process_group::Lookup& variable);

class AgentLink {
 public:
  using RoundOverHandler = std::function<void(const std::string& why)>;

  // Throws std::system_error.
  explicit AgentLink(io::UniqueFd socket);
  ~AgentLink();
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  void say(const worker_link::ToAgent& message);

  // From now on `over` is called once the agent says that this round is over; at once where it has said so already.
  void enter(std::uint32_t round, RoundOverHandler over);

  // No call of the handler runs, or comes, after it.
  void leave();

  // Throws TimeoutError where none comes in time, AbortedError where there will be none.
  std::map<std::string, std::string> wait_for_seat(std::chrono::milliseconds limit);

 private:
  void listen();
  bool read();
  void take(const worker_link::RoundOver& message);
  void take(const worker_link::Seat& message);
  void take(const worker_link::Stop& message);
  void take(const worker_link::PrepareStop&) {}
  void take(const worker_link::StopAt&) {}

  process_group::ForkGuard fork_guard_;
  io::UniqueFd socket_;
  io::UniqueFd stop_;  // an eventfd, readable when the thread is to end
  std::mutex mutex_;
  std::condition_variable changed_;  // of `seat_` or `end_`; the rest below is guarded by mutex_ too
  std::optional<std::uint32_t> round_;
  RoundOverHandler over_;
  std::optional<worker_link::RoundOver> last_over_;
  std::optional<worker_link::Seat> seat_;
  std::optional<std::string> end_;  // why there will be no seat
  std::thread thread_;
};

}  // namespace ddp::elastic
