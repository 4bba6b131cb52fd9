// What the agent says of rounds to this process: a round is over, here is a seat in the next one, there will be none.
//
// Threads: any. RoundOverHandler is called with the mutex held, so it must not call back.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "rendezvous/worker_link/message.hpp"

namespace ddp::agent_link {

using RoundOverHandler = std::function<void(const std::string& why)>;

class Seats {
 public:
  // From now on `over` is called once the agent says that this round is over; at once if it has said so already.
  void enter(std::uint32_t round, RoundOverHandler over);

  // No call of the handler runs, or comes, after it.
  void leave();

  // The variables of the next seat. Throws TimeoutError if none comes in time, AbortedError if there will be none.
  std::map<std::string, std::string> wait(std::chrono::milliseconds limit);

  void take(const worker_link::LinkRoundOver& message);
  void take(const worker_link::LinkSeat& message);
  void take(const worker_link::LinkStop& message);
  void lose_agent();

 private:
  void end(const std::string& why);

  std::mutex mutex_;
  std::condition_variable changed_;  // of `seat_` or `end_`
  std::optional<std::uint32_t> round_;
  RoundOverHandler over_;
  std::optional<worker_link::LinkRoundOver> last_over_;
  std::optional<worker_link::LinkSeat> seat_;
  std::optional<std::string> end_;  // why there will be no seat
};

}  // namespace ddp::agent_link
