// Runs calls that can wait for a disk on a thread of its own, so that the event loop never waits.
//
// Drop rule: the queue is bounded, in tasks and in bytes. A task that does not fit is refused: post() returns false,
// and neither of its calls runs. The caller tells the user what is missing, as its own documentation says.
//
// Threads: the members are the event loop's only.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/quiet_thread.hpp"

namespace ddp::base {

class FileThread {
 public:
  struct Options {
    std::chrono::milliseconds end_limit;   // how long the destructor waits for what was posted
    std::size_t tasks_max = 256;           // posted and not done; a caller has few at a time while its disk answers
    std::size_t bytes_max = 32ULL << 20U;  // of such tasks together
  };

  // Throws std::system_error where threads run out.
  FileThread(boost::asio::io_context& io, const Options& options)
      : io_(io), options_(options), queue_(std::make_shared<Queue>()) {
    thread_ = start_quiet_thread([queue = queue_] { run(*queue); });
  }

  // Afterwards no `done` is posted to the loop. A thread that still waits for its disk is left behind.
  ~FileThread() {
    std::deque<Task> left;  // destroyed without the lock
    std::unique_lock lock(queue_->mutex);
    queue_->is_ending = true;
    queue_->changed.notify_all();
    const bool has_ended = queue_->changed.wait_for(lock, options_.end_limit, [this] { return queue_->has_ended; });
    queue_->is_abandoned = true;
    left.swap(queue_->tasks);
    lock.unlock();
    has_ended ? thread_.join() : thread_.detach();
  }
  FileThread(const FileThread&) = delete;

  // Runs `work` on the thread, after all that was posted before, then `done` on the loop. `work` may outlive this
  // object, so it owns what it uses. Neither throws. `bytes`: how much memory `work` holds, if it is much. False: the
  // task is refused (drop rule).
  [[nodiscard]] bool post(std::function<void()> work, std::function<void()> done, std::size_t bytes = 0) {
    const std::lock_guard lock(queue_->mutex);
    if (queue_->tasks.size() >= options_.tasks_max || queue_->bytes + bytes > options_.bytes_max) return false;
    queue_->bytes += bytes;
    queue_->tasks.push_back({std::move(work), std::move(done), bytes, boost::asio::make_work_guard(io_)});
    queue_->changed.notify_all();
    return true;
  }

 private:
  struct Task {
    std::function<void()> work, done;
    std::size_t bytes;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> loop;  // keeps run() of the loop waiting
  };

  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;  // of anything below
    std::deque<Task> tasks;           // the first one is being worked on
    std::size_t bytes = 0;            // of tasks
    bool is_ending = false, is_abandoned = false, has_ended = false;
  };

  static void run(Queue& queue) {
    std::unique_lock lock(queue.mutex);
    while (!queue.is_abandoned) {
      if (queue.tasks.empty() && queue.is_ending) break;
      if (queue.tasks.empty()) {
        queue.changed.wait(lock);
        continue;
      }
      auto work = std::move(queue.tasks.front().work);
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
      if (queue.is_abandoned) break;
      auto task = std::move(queue.tasks.front());
      queue.tasks.pop_front();
      queue.bytes -= task.bytes;
      boost::asio::post(task.loop.get_executor(), std::move(task.done));
    }
    queue.has_ended = true;
    queue.changed.notify_all();
  }

  boost::asio::io_context& io_;
  const Options options_;
  std::shared_ptr<Queue> queue_;
  std::thread thread_;
};

}  // namespace ddp::base
