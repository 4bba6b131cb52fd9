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

  // Never waits for the agent. The message is lost if the agent does not read and the socket is full of such messages.
  void send(const worker_link::FromWorker& message);

  // How this process has parted from its groups of a round. Of a round the first counts, but one in order gives way.
  // Does not wait for the agent.
  void depart(const worker_link::Departure& departure);

  // Whether the agent is to count on this process for another round. Throws Error where there is no thread to be had.
  void take_seats(bool does);

  // Tells of progress as far as it is news by now. Says nothing while the agent leaves half of the socket unread.
  void tell(const Known& known);

  // As Seats (seats.hpp) says.
  void enter(std::uint32_t round, RoundOverHandler over);
  void leave();
  std::map<std::string, std::string> wait_for_seat(std::chrono::milliseconds limit);

  // The process has a group of this round: calls of should_stop() count from 1, unless it is the round that they count
  // in already, which is said. A departure from an earlier group is void.
  bool begin_round(std::uint32_t round);

  // As ProcessGroup::should_stop() of a group of this round; false where another round has begun since. The first call
  // of all tells the agent that this process is to be asked, and keeps SIGTERM.
  bool should_stop(std::uint32_t round, std::chrono::milliseconds limit);

 private:
  void take_stops();
  void answer_stop();
  void hear(std::string_view packet);
  void lose();
  void take(const worker_link::LinkRoundOver& message);
  void take(const worker_link::LinkSeat& message);
  void take(const worker_link::LinkStop& message);
  void take(const worker_link::LinkPrepareStop& message);
  void take(const worker_link::LinkStopAt& message);

  base::ForkGuard fork_guard_;
  base::UniqueFd socket_;
  Seats seats_;                   // has a mutex of its own
  std::mutex hello_mutex_;        // the innermost
  worker_link::LinkHello hello_;  // guarded by hello_mutex_
  std::mutex mutex_;
  bool takes_stops_ = false;  // guarded by mutex_, as the next
  StopAnswers stops_;
  std::mutex news_mutex_;
  ProgressNews news_;        // guarded by news_mutex_
  PacketListener listener_;  // the last: its thread uses the rest
};

}  // namespace ddp::agent_link
