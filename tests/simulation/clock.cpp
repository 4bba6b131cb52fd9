#include "tests/simulation/clock.hpp"

#include <algorithm>

namespace ddp::simulation {

void Clock::at(TimePoint when, Process* owner, Action action) {
  std::uint32_t slot = 0;
  if (free_slots_.empty()) {
    slot = static_cast<std::uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  slots_[slot] = {owner, std::move(action)};
  heap_.push_back({std::max(when, now_), events_made_++, slot});
  std::push_heap(heap_.begin(), heap_.end());
}

void Clock::go_on(Process& process) {
  if (--process.pauses > 0) return;
  process.went_on = now_;
  for (auto& action : std::exchange(process.waiting, {})) at(now_, &process, std::move(action));
}

std::optional<TimePoint> Clock::next_event() const {
  if (heap_.empty()) return {};
  return heap_.front().when;
}

bool Clock::run_until(TimePoint end, std::uint64_t limit) {
  while (!heap_.empty() && heap_.front().when <= end) {
    if (++events_played_ > limit) return false;
    std::pop_heap(heap_.begin(), heap_.end());
    const auto event = heap_.back();
    heap_.pop_back();
    now_ = event.when;
    auto [owner, action] = std::exchange(slots_[event.slot], {});
    free_slots_.push_back(event.slot);
    if (owner == nullptr || owner->runs())
      action();
    else if (owner->is_alive)
      owner->waiting.push_back(std::move(action));
  }
  now_ = std::max(now_, end);
  return true;
}

}  // namespace ddp::simulation
