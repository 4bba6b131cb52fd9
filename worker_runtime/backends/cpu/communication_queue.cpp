#include "worker_runtime/backends/cpu/communication_queue.hpp"

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/quiet_thread.hpp"
#include "worker_runtime/core/callbacks/callbacks.hpp"

namespace ddp::cpu_backend {

// A job and what became of it; fields are guarded by the queue's mutex. Once it is done, error_ and took_ stay as they
// are.
class CommunicationQueue::Task : public Work::State {
 public:
  Task(std::shared_ptr<CommunicationQueue> queue, Job job) : queue_(std::move(queue)), job_(std::move(job)) {}

  void wait() override { queue_->wait_for(*this); }
  bool is_completed() const override { return done_.load(std::memory_order_acquire); }
  std::optional<std::chrono::nanoseconds> duration() const override {
    return is_completed() && !error_ ? std::optional(took_) : std::nullopt;
  }
  bool wait_until(std::chrono::steady_clock::time_point end) override { return queue_->wait_until(*this, end); }
  void on_completed(Callback callback) override { queue_->on_completed(*this, std::move(callback)); }

 private:
  friend class CommunicationQueue;
  std::shared_ptr<CommunicationQueue> queue_;
  Job job_;
  std::atomic<bool> done_{false};
  std::exception_ptr error_;
  std::chrono::nanoseconds took_{};
  std::vector<Callback> callbacks_;  // none once they are called
};

// With the mutex held. A Turn that is had counts as a job that runs from here on.
void CommunicationQueue::lock_state() {
  if (state_.exchange(State::locked, std::memory_order_acq_rel) == State::turn) busy_ = true;
}

// With the mutex held.
void CommunicationQueue::unlock_if_idle() {
  if (!busy_ && tasks_.empty() && !unclaimed_ && !stopping_) state_.store(State::idle, std::memory_order_release);
}

void CommunicationQueue::end_turn() {
  const std::lock_guard lock(mutex_);
  end_job();
}

void CommunicationQueue::throw_unclaimed_error() {
  if (state_.load(std::memory_order_acquire) != State::locked) return;  // no error without the mutex
  std::unique_lock lock(mutex_);
  throw_unclaimed(lock);
}

std::shared_ptr<Work::State> CommunicationQueue::submit(Job job) {
  auto task = std::make_shared<Task>(shared_from_this(), std::move(job));
  const std::lock_guard lock(mutex_);
  lock_state();
  if (tasks_.size() >= kTasksMax) {
    throw Error(
        std::to_string(kTasksMax) +
        " collectives of this process group are waiting for their turn, more than any use needs\ntry:   wait for "
        "a Work now and then");
  }
  start_thread();
  tasks_.push_back(task);
  came_.notify_one();
  return task;
}

// With the mutex held.
void CommunicationQueue::start_thread() {
  if (thread_.joinable()) return;
  try {
    thread_ = base::start_quiet_thread([this] { run_while_open(); });
  } catch (const std::system_error& error) {
    throw Error(std::string("no thread for the collectives that run beside the program: ") + error.what() +
                "\ntry:   compare the limits of this process (`ulimit -a`) with what it uses");
  }
}

void CommunicationQueue::run(const Job& job) {
  std::unique_lock lock(mutex_);
  for (;;) {
    lock_state();  // again each time: at the end of a job all may have been idle
    throw_unclaimed(lock);
    if (busy_) {
      ended_.wait(lock);
    } else if (!tasks_.empty()) {
      run_front(lock);
    } else {
      break;
    }
  }
  busy_ = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    job();
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  end_job();
  if (error) std::rethrow_exception(error);
}

void CommunicationQueue::stop() {
  std::unique_lock lock(mutex_);
  lock_state();
  stopping_ = true;
  came_.notify_one();
  while (busy_ || !tasks_.empty()) {
    if (busy_) {
      ended_.wait(lock);
    } else {
      run_front(lock);
    }
  }
  lock.unlock();
  if (thread_.joinable()) thread_.join();
  if (core::is_callback_thread()) return;
  lock.lock();
  ended_.wait(lock, [this] { return callbacks_due_ == 0; });
}

void CommunicationQueue::wait_for(Task& task) {
  fork_guard_.require_own_process();
  std::unique_lock lock(mutex_);
  while (!task.done_.load(std::memory_order_relaxed)) {
    if (busy_) {
      ended_.wait(lock);
    } else {
      run_front(lock);  // not done, and nothing runs: it stands in line
    }
  }
  throw_error_of(task);
}

// Leaves the job to the communication thread: here it might take longer than it may.
bool CommunicationQueue::wait_until(Task& task, std::chrono::steady_clock::time_point end) {
  fork_guard_.require_own_process();
  std::unique_lock lock(mutex_);
  if (!ended_.wait_until(lock, end, [&] { return task.done_.load(std::memory_order_relaxed); })) return false;
  throw_error_of(task);
  return true;
}

void CommunicationQueue::on_completed(Task& task, Work::State::Callback callback) {
  fork_guard_.require_own_process();
  std::unique_lock lock(mutex_);
  if (!task.done_.load(std::memory_order_relaxed)) {
    task.callbacks_.push_back(std::move(callback));
    return;
  }
  if (task.error_ && unclaimed_ == task.error_) {
    unclaimed_ = nullptr;
    unlock_if_idle();
  }
  const std::exception_ptr error = task.error_;
  lock.unlock();
  Work::State::call(callback, error);
}

// With the mutex held.
void CommunicationQueue::throw_error_of(const Task& task) {
  if (!task.error_) return;
  if (unclaimed_ == task.error_) {
    unclaimed_ = nullptr;
    unlock_if_idle();
  }
  std::rethrow_exception(task.error_);
}

void CommunicationQueue::throw_unclaimed(std::unique_lock<std::mutex>& lock) {
  if (!unclaimed_) return;
  const std::exception_ptr error = std::exchange(unclaimed_, nullptr);
  unlock_if_idle();
  lock.unlock();
  std::rethrow_exception(error);
}

// Runs the oldest job with the mutex released. Requires that there is one and that none runs.
void CommunicationQueue::run_front(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<Task> task = std::move(tasks_.front());
  tasks_.pop_front();
  busy_ = true;
  lock.unlock();
  std::exception_ptr error;
  const auto begin = std::chrono::steady_clock::now();
  try {
    task->job_();
  } catch (...) {
    error = std::current_exception();
  }
  const auto end = std::chrono::steady_clock::now();
  task->job_ = nullptr;
  lock.lock();
  task->error_ = error;
  task->took_ = end - begin;
  auto callbacks = std::exchange(task->callbacks_, {});
  if (error && !failed_ && callbacks.empty()) unclaimed_ = error;
  failed_ = failed_ || error;
  task->done_.store(true, std::memory_order_release);
  if (!callbacks.empty()) ++callbacks_due_;
  end_job();
  if (callbacks.empty()) return;
  lock.unlock();
  call_back(std::move(callbacks), error);
  lock.lock();
}

// Without the mutex.
void CommunicationQueue::call_back(std::vector<Work::State::Callback> callbacks, const std::exception_ptr& error) {
  core::post_callback([self = shared_from_this(), callbacks = std::move(callbacks), error]() mutable {
    for (const auto& callback : callbacks) Work::State::call(callback, error);
    callbacks.clear();  // what they hold may be the last handle of the group, which then calls stop()
    const std::lock_guard lock(self->mutex_);
    --self->callbacks_due_;
    self->ended_.notify_all();
  });
}

// With the mutex held.
void CommunicationQueue::end_job() {
  busy_ = false;
  ended_.notify_all();
  if (!tasks_.empty() || stopping_) came_.notify_one();
  unlock_if_idle();
}

// The communication thread. It goes on after stop() until nothing is left.
void CommunicationQueue::run_while_open() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!busy_ && !tasks_.empty()) {
      run_front(lock);
    } else if (stopping_ && tasks_.empty()) {
      return;
    } else {
      came_.wait(lock);
    }
  }
}

}  // namespace ddp::cpu_backend
