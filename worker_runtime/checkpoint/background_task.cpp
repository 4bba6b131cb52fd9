#include "worker_runtime/checkpoint/background_task.hpp"

#include "base/quiet_thread.hpp"

#include <condition_variable>
#include <mutex>
#include <utility>

namespace ddp::checkpoint {

struct BackgroundTask::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> task;  // that has not begun
  bool is_under_way = false;
  std::exception_ptr failure;
  bool is_over = false;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return task || is_over; });
      if (!task) return;
      std::exception_ptr thrown;
      std::function<void()> running = std::exchange(task, nullptr);
      lock.unlock();
      try {
        running();
      } catch (...) {
        thrown = std::current_exception();
      }
      running = {};  // what it holds ends before anybody is told
      lock.lock();
      is_under_way = false;
      failure = thrown;
      changed.notify_all();
    }
  }
};

BackgroundTask::~BackgroundTask() { forget(); }

void BackgroundTask::forget() {
  const auto state = std::exchange(state_, nullptr);
  if (!state) return;
  const std::lock_guard lock(state->mutex);
  state->is_over = true;
  state->changed.notify_all();
}

void BackgroundTask::begin(std::function<void()> task) {
  if (!state_) {
    auto state = std::make_shared<State>();
    base::start_quiet_thread([state] { state->run(); }).detach();
    state_ = std::move(state);
  }
  const std::lock_guard lock(state_->mutex);
  state_->task = std::move(task);
  state_->is_under_way = true;
  state_->changed.notify_all();
}

bool BackgroundTask::wait_until(std::chrono::steady_clock::time_point end) {
  if (!state_) return true;
  std::unique_lock lock(state_->mutex);
  if (!state_->changed.wait_until(lock, end, [this] { return !state_->is_under_way; })) return false;
  if (auto failure = std::exchange(state_->failure, nullptr)) std::rethrow_exception(failure);
  return true;
}

}  // namespace ddp::checkpoint
