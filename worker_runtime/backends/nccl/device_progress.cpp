#include "worker_runtime/backends/nccl/device_progress.hpp"

#include <exception>

#include "worker_runtime/backends/nccl/event_wait.hpp"

namespace ddp::nccl_backend {

void DeviceProgress::start_clock() {
  auto begin = std::make_shared<Event>(Event::Timing::on);
  begin->record(group_.stream.get());
  EventWaits::of_process().wait(*begin, group_.device);
  const std::lock_guard lock(mutex_);
  clock_.set(begin, flight_recorder::now());
}

bool DeviceProgress::look() {
  const std::lock_guard lock(mutex_);
  return !is_final_ && look_locked();
}

void DeviceProgress::last_look() {
  const std::lock_guard lock(mutex_);
  is_final_ = true;
  try {
    look_locked();
  } catch (const std::exception&) {  // what is known by now is all there is to tell
  }
}

bool DeviceProgress::look_locked() {
  UnderWay& under_way = group_.under_way;
  bool has_progressed = false;
  for (;;) {
    const auto [operation, has_started] = under_way.front();
    if (!operation) break;
    if (!has_started) {
      if (!operation->begin_event()->has_come()) break;
      under_way.start(*operation, clock_.time_of(operation->begin_event()));
      has_progressed = true;
    }
    if (!operation->end_event()->has_come()) break;
    if (!under_way.complete(*operation, clock_.time_of(operation->end_event()))) break;
    has_progressed = true;
  }
  return has_progressed;
}

}  // namespace ddp::nccl_backend
