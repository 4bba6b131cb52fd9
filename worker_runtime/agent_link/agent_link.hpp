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
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "base/fork_guard.hpp"
#include "base/unique_fd.hpp"
#include "rendezvous/worker_link/message.hpp"
#include "worker_runtime/agent_link/packet_listener.hpp"
#include "worker_runtime/agent_link/progress_news.hpp"
#include "worker_runtime/agent_link/seats.hpp"
#include "worker_runtime/agent_link/stop_answers.hpp"

namespace ddp::agent_link {

// The inherited socket that the variable's value names, now close-on-exec; empty where there is none of this program's
// own: the value names a descriptor that is something else here.
base::UniqueFd take_inherited_socket(const std::string& named);

class AgentLink {
 public:
  // Says hello. Throws std::system_error.
  explicit AgentLink(base::UniqueFd socket);

  bool in_forked_child() const { return fork_guard_.in_forked_child(); }

  void say(const worker_link::ToAgent& message);

  // Whether the agent is to count on this process for another round. Throws Error where there is no thread to be had.
  void take_seats(bool does);

  // Tells of progress as far as it is news by now.
  void tell(const Known& known);

  // As Seats (seats.hpp) says.
  void enter(std::uint32_t round, RoundOverHandler over);
  void leave();
  std::map<std::string, std::string> wait_for_seat(std::chrono::milliseconds limit);

  // The process has a group of this round: calls of should_stop() count from 1, unless it is the round that they count
  // in already, which is said.
  bool begin_round(std::uint32_t round);

  // As ProcessGroup::should_stop() of a group of this round; false where another round has begun since. The first call
  // of all tells the agent that this process is to be asked, and keeps SIGTERM.
  bool should_stop(std::uint32_t round, std::chrono::milliseconds limit);

 private:
  void take_stops();
  void answer_stop();
  void hear(std::string_view packet);
  void lose();
  void take(const worker_link::RoundOver& message);
  void take(const worker_link::Seat& message);
  void take(const worker_link::Stop& message);
  void take(const worker_link::PrepareStop& message);
  void take(const worker_link::StopAt& message);

  base::ForkGuard fork_guard_;
  base::UniqueFd socket_;
  Seats seats_;  // has a mutex of its own
  std::mutex mutex_;
  worker_link::Hello hello_;  // guarded by mutex_, as the next
  StopAnswers stops_;
  std::mutex news_mutex_;
  ProgressNews news_;        // guarded by news_mutex_
  PacketListener listener_;  // the last: its thread uses the rest
};

}  // namespace ddp::agent_link
