// The worker's end of the socket to its agent, and a thread that listens to it: a round is over, here is your seat,
// there is none; at which step can you stop, stop there. What it says of stops is the part of should_stop() of this
// process.
//
// Threads: one of its own, from when the process takes seats or stops; it calls RoundOverHandler. enter(), leave() and
//          wait_for_seat() are one thread's, as are begin_round() and should_stop(); what the process says about itself
//          may come from any.
// Fork:    a forked child has no part in it, and leaks it.
// Protocol: docs/worker_link.md.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/fork_guard.hpp"
#include "base/unique_fd.hpp"
#include "rendezvous/worker_link/message.hpp"
#include "worker_runtime/agent_link/progress_news.hpp"
#include "worker_runtime/agent_link/stop_point.hpp"

namespace ddp::agent_link {

// The inherited socket that the variable's value names, now close-on-exec; empty where there is none of this program's
// own: the value names a descriptor that is something else here.
base::UniqueFd take_inherited_socket(const std::string& named);

class AgentLink {
 public:
  using RoundOverHandler = std::function<void(const std::string& why)>;

  // Says hello. Throws std::system_error.
  explicit AgentLink(base::UniqueFd socket);
  ~AgentLink();
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  bool in_forked_child() const { return fork_guard_.in_forked_child(); }

  void say(const worker_link::ToAgent& message);

  // Whether the agent is to count on this process for another round. Throws Error where there is no thread to be had.
  void take_seats(bool does);

  // Tells of progress as far as it is news by now.
  void tell(const Known& known);

  // From now on `over` is called once the agent says that this round is over; at once where it has said so already.
  void enter(std::uint32_t round, RoundOverHandler over);

  // No call of the handler runs, or comes, after it.
  void leave();

  // Throws TimeoutError where none comes in time, AbortedError where there will be none.
  std::map<std::string, std::string> wait_for_seat(std::chrono::milliseconds limit);

  // The process has a group of this round: calls of should_stop() count from 1, unless it is the round that they count
  // in already, which is said.
  bool begin_round(std::uint32_t round);

  // As ProcessGroup::should_stop() of a group of this round; false where another round has begun since. The first call
  // of all tells the agent that this process is to be asked, and keeps SIGTERM.
  bool should_stop(std::uint32_t round, std::chrono::milliseconds limit);

 private:
  void say_hello();
  void start_to_listen();
  void listen();
  bool read();
  void lose();
  void take_stops();
  void answer_stop();
  void take(const worker_link::RoundOver& message);
  void take(const worker_link::Seat& message);
  void take(const worker_link::Stop& message);
  void take(const worker_link::PrepareStop& message);
  void take(const worker_link::StopAt& message);

  base::ForkGuard fork_guard_;
  base::UniqueFd socket_;
  base::UniqueFd stop_;  // an eventfd, readable when the thread is to end
  std::mutex mutex_;
  std::condition_variable changed_;  // of `seat_` or `end_`; the rest below is guarded by mutex_ too
  worker_link::Hello hello_;
  std::optional<std::uint32_t> round_;
  RoundOverHandler over_;
  std::optional<worker_link::RoundOver> last_over_;
  std::optional<worker_link::Seat> seat_;
  std::optional<std::string> end_;           // why there will be no seat
  std::optional<std::uint32_t> stop_round_;  // in which calls of should_stop() count
  std::optional<worker_link::PrepareStop> last_prepare_;
  bool has_said_stopping_ = false;  // in stop_round_
  StopPoint stop_point_;            // has a mutex of its own
  std::mutex news_mutex_;
  ProgressNews news_;  // guarded by news_mutex_
  std::thread thread_;
};

}  // namespace ddp::agent_link
