// A cable that delays and loses: moves Ethernet frames between two interfaces in user space, by packet sockets. What
// comes from one end is late or lost, what comes from the other passes at once. The order of frames stays.
//
// Threads: one, in a process of its own, which does nothing else.
// Errors: std::system_error while it is set up. After that a frame that can't be taken or sent is a lost one.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"

namespace ddp::test {

// Of what a host sends.
struct Disturbance {
  std::chrono::microseconds delay{};  // of each frame
  double loss = 0;                    // probability, of each frame by itself
};

// Whether the kernel has packet sockets, and gives them to this process.
bool can_relay_frames();

// Frames leave this interface whole from now on: no larger than its MTU and with their checksums. Frames between
// namespaces are otherwise left to hardware that doesn't exist. Every interface next to a relay needs it.
void finish_frames_in_software(const std::string& interface);

class FrameRelay {
 public:
  struct Options {
    std::string from, to;  // interfaces in the caller's network: frames from `from` to `to` are disturbed
    Disturbance disturbance;
    std::uint32_t seed = 0;  // of the choice which are lost
  };

  explicit FrameRelay(const Options& options);

  [[noreturn]] void run();  // ends with the process

 private:
  using Clock = std::chrono::steady_clock;
  struct Held {
    Clock::time_point due;
    std::vector<char> frame;
  };

  void wait() const;
  void take_in();
  void send_due();
  void pass_back();
  std::optional<std::vector<char>> receive(const base::UniqueFd& end);

  Disturbance disturbance_;
  std::mt19937 random_;
  std::bernoulli_distribution is_lost_;
  base::UniqueFd from_, to_;
  std::deque<Held> held_;  // in the order in which they are due
  std::vector<char> buffer_;
};

}  // namespace ddp::test
