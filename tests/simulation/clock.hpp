// Virtual time, and the processes that live in it. An event of a process that is paused waits until it goes on, one of
// a process that has ended never happens.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ddp::simulation {

using namespace std::chrono_literals;
using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::microseconds;
using Action = std::function<void()>;

struct Process {
  Process(std::string its_name, int its_host) : name(std::move(its_name)), host(its_host) {}

  std::string name;
  int host;
  bool is_alive = true;
  int pauses = 0;                    // that hold at present: its own, its host's
  std::vector<Action> waiting;       // for the end of the pause
  std::optional<TimePoint> went_on;  // after the last pause

  bool runs() const { return is_alive && pauses == 0; }
};

class Clock {
 public:
  TimePoint now() const { return now_; }
  Duration since_start() const { return std::chrono::duration_cast<Duration>(now_ - kStart); }

  // owner: whose event it is; null for the world's own. Those of one time happen in the order in which they were made.
  void at(TimePoint when, Process* owner, Action action);
  void after(Duration delay, Process* owner, Action action) { at(now_ + delay, owner, std::move(action)); }

  void pause(Process& process) { ++process.pauses; }
  void go_on(Process& process);

  // Plays all that is due until then. False where `limit` events were not enough.
  bool run_until(TimePoint end, std::uint64_t limit);
  std::optional<TimePoint> next_event() const;
  std::uint64_t events_played() const { return events_played_; }

 private:
  struct Event {
    TimePoint when;
    std::uint64_t number;
    std::uint32_t slot;
    bool operator<(const Event& other) const { return when != other.when ? when > other.when : number > other.number; }
  };
  struct Slot {
    Process* owner = nullptr;
    Action action;
  };

  static constexpr TimePoint kStart{1h};
  TimePoint now_ = kStart;
  std::vector<Event> heap_;  // the actions lie apart, so that little is moved
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::uint64_t events_made_ = 0, events_played_ = 0;
};

// One deadline of a process; setting it anew forgets the one before.
class Timer {
 public:
  Timer(Clock& clock, Process& owner) : clock_(clock), owner_(owner) {}

  void set(std::optional<TimePoint> when, Action action) {
    ++generation_;
    if (!when) return;
    clock_.at(*when, &owner_, [this, generation = generation_, action = std::move(action)] {
      if (generation == generation_) action();
    });
  }
  void cancel() { ++generation_; }

 private:
  Clock& clock_;
  Process& owner_;
  std::uint64_t generation_ = 0;
};

}  // namespace ddp::simulation
