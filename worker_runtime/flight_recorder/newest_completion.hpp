// Says without a lock that the newest call of a group is complete, where one thread makes and ends all its calls:
// before it records the next one. The recorder takes that in when it looks at the group.
//
// Threads: say() from the thread that makes the calls, take() from one at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "worker_runtime/flight_recorder/entry.hpp"

namespace ddp::flight_recorder {

class NewestCompletion {
 public:
  void say(const Ticket& ticket, TimePoint at) {
    at_.store(at.time_since_epoch().count(), std::memory_order_relaxed);
    said_.store(ticket.record + 1, std::memory_order_release);
  }

  struct Completion {
    std::uint64_t record = 0;
    TimePoint at{};
  };
  std::optional<Completion> take() {
    const std::uint64_t said = said_.load(std::memory_order_acquire);
    if (said == 0) return std::nullopt;
    const TimePoint at{TimePoint::duration(at_.load(std::memory_order_relaxed))};
    said_.store(0, std::memory_order_relaxed);
    return Completion{said - 1, at};
  }

 private:
  std::atomic<std::uint64_t> said_{0};  // 1 + the record; 0 where take() has had it
  std::atomic<std::int64_t> at_{0};
};

}  // namespace ddp::flight_recorder
