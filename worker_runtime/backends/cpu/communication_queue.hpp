// Runs a group's collectives one after the other, in the order of the calls: the cpu backend's "stream".
//
// A job runs on the thread that waits for it where it can, so that a blocking call costs no hand-over; else on the
// communication thread, which starts with the first asynchronous call. At most one job runs at a time.
//
// A job's error belongs to the Work that waits for it, or to that Work's callbacks; if nobody has by the time of the
// next call, that call throws it. Callbacks run on a thread of their own (core/callbacks).
//
// Threads: any. Fork: a forked child must not touch it; Work::wait() there throws InvalidArgument.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/fork_guard.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::cpu_backend {

class CommunicationQueue : public std::enable_shared_from_this<CommunicationQueue> {
 public:
  using Job = std::function<void()>;

  static constexpr std::size_t kTasksMax = 65'536;  // a model has hundreds of buckets

  // The turn of whoever makes it, which then does what a job does; but only where nothing stands in line or runs, and
  // no error is unclaimed. It takes no lock where nobody else comes.
  class Turn {
   public:
    explicit Turn(CommunicationQueue& queue) : queue_(queue), is_had_(queue.take_idle()) {}
    ~Turn() {
      if (is_had_) queue_.give_back();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    explicit operator bool() const { return is_had_; }

   private:
    CommunicationQueue& queue_;
    bool is_had_;
  };

  // Throws the error of an earlier job that nobody waited for, once.
  void throw_unclaimed_error();

  // Enqueues a job. Throws Error, and enqueues nothing, where kTasksMax are waiting or no thread can be had.
  std::shared_ptr<Work::State> submit(Job job);

  // Runs a job behind all earlier ones and returns when it is done. Throws what it threw, or, before it begins, an
  // unclaimed error.
  void run(const Job& job);

  // Runs what is left, ends the thread, and waits for the callbacks, unless one of them calls this. Requires that jobs
  // end by themselves, and that no call follows.
  void stop();

 private:
  class Task;

  // idle: nothing is to be done. turn: a Turn is had, and nothing else is to be done. locked: what is to be done says
  // the rest, under the mutex.
  enum class State : std::uint8_t { idle, turn, locked };

  bool take_idle() {
    State idle = State::idle;
    return state_.compare_exchange_strong(idle, State::turn, std::memory_order_acquire, std::memory_order_relaxed);
  }
  void give_back() {
    State turn = State::turn;
    if (!state_.compare_exchange_strong(turn, State::idle, std::memory_order_release, std::memory_order_relaxed))
      end_turn();
  }
  void lock_state();
  void unlock_if_idle();
  void end_turn();

  void start_thread();
  void wait_for(Task& task);
  bool wait_until(Task& task, std::chrono::steady_clock::time_point end);
  void on_completed(Task& task, Work::State::Callback callback);
  void throw_error_of(const Task& task);
  void throw_unclaimed(std::unique_lock<std::mutex>& lock);
  void run_front(std::unique_lock<std::mutex>& lock);
  void end_job();
  void call_back(std::vector<Work::State::Callback> callbacks, const std::exception_ptr& error);
  void run_while_open();

  base::ForkGuard fork_guard_;
  std::atomic<State> state_{State::idle};  // away from `locked` only with the mutex held
  mutable std::mutex mutex_;
  std::condition_variable came_;             // for the communication thread: a job may be there, or stop() was called
  std::condition_variable ended_;            // for those who wait for a job: one has ended
  std::deque<std::shared_ptr<Task>> tasks_;  // not begun, in the order of the calls
  bool busy_ = false;                        // a job is running, on whatever thread
  bool stopping_ = false;
  int callbacks_due_ = 0;         // lists of them, each of one job
  bool failed_ = false;           // a job of submit() has thrown; what follows only repeats it
  std::exception_ptr unclaimed_;  // that first error, until somebody has been told
  std::thread thread_;
};

}  // namespace ddp::cpu_backend
