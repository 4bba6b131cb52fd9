// When things happened on a device, in the host's time.
//
// An event of a known time is kept; others are measured from it. It is replaced now and then, because CUDA measures in
// floats, which are fine only near by.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <memory>

#include "worker_runtime/backends/nccl/cuda.hpp"
#include "worker_runtime/flight_recorder/recorder.hpp"

namespace ddp::nccl_backend {

class DeviceClock {
 public:
  using TimePoint = flight_recorder::TimePoint;

  // `event` has Timing::on and came about now.
  void set(std::shared_ptr<const Event> event, TimePoint time) {
    base_ = std::move(event);
    base_time_ = time;
  }

  // Of an event with Timing::on that has come.
  TimePoint time_of(const std::shared_ptr<const Event>& event) {
    using Milliseconds = std::chrono::duration<double, std::milli>;
    const Milliseconds since(milliseconds_between(*base_, *event));
    const TimePoint time = base_time_ + std::chrono::duration_cast<std::chrono::nanoseconds>(since);
    if (since > kNearBy) set(event, time);
    return time;
  }

 private:
  static constexpr std::chrono::seconds kNearBy{4};  // a float still tells half a microsecond apart

  std::shared_ptr<const Event> base_;
  TimePoint base_time_{};
};

}  // namespace ddp::nccl_backend
