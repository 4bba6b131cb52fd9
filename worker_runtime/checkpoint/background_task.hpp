// A thread that does one task at a time.
//
// Threads: one caller. If a task is still running when this object ends, the task runs on by itself.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>

namespace ddp::checkpoint {

class BackgroundTask {
 public:
  BackgroundTask() = default;
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;
  ~BackgroundTask();  // waits for no task

  // Requires that no task is under way.
  void begin(std::function<void()> task);

  // Waits for the task under way, if there is one: false where it has not ended by then. Throws, once, what it threw.
  [[nodiscard]] bool wait_until(std::chrono::steady_clock::time_point end);

  // A task under way goes on, as at the end of this object; nobody hears how it ends.
  void forget();

 private:
  struct State;
  std::shared_ptr<State> state_;  // null before the first task
};

}  // namespace ddp::checkpoint
