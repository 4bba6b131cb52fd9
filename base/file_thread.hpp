// Runs calls that can wait for a disk on a thread of its own, so that the event loop never waits.
//
// The queue has no bound of its own: whoever posts bounds what it has posted, such as one write at a time.
//
// Threads: the members are the event loop's only.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <condition_variable>
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
  // end_limit: how long the destructor waits for what was posted. Throws std::system_error where threads run out.
  FileThread(boost::asio::io_context& io, std::chrono::milliseconds end_limit)
      : io_(io), end_limit_(end_limit), queue_(std::make_shared<Queue>()) {
    thread_ = start_quiet_thread([queue = queue_] { run(*queue); });
  }

  // Afterwards no `done` is posted to the loop. A thread that still waits for its disk is left behind.
  ~FileThread() {
    std::deque<Task> left;  // destroyed without the lock
    std::unique_lock lock(queue_->mutex);
    queue_->is_ending = true;
    queue_->changed.notify_all();
    const bool has_ended = queue_->changed.wait_for(lock, end_limit_, [this] { return queue_->has_ended; });
    queue_->is_abandoned = true;
    left.swap(queue_->tasks);
    lock.unlock();
    has_ended ? thread_.join() : thread_.detach();
  }
  FileThread(const FileThread&) = delete;

  // Runs `work` on the thread, after all that was posted before, then `done` on the loop. `work` may outlive this
  // object, so it owns what it uses. Neither throws.
  void post(std::function<void()> work, std::function<void()> done) {
    const std::lock_guard lock(queue_->mutex);
    queue_->tasks.push_back({std::move(work), std::move(done), boost::asio::make_work_guard(io_)});
    queue_->changed.notify_all();
  }

 private:
  struct Task {
    std::function<void()> work, done;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> loop;  // keeps run() of the loop waiting
  };

  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;  // of anything below
    std::deque<Task> tasks;           // the first one is being worked on
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
      boost::asio::post(task.loop.get_executor(), std::move(task.done));
    }
    queue.has_ended = true;
    queue.changed.notify_all();
  }

  boost::asio::io_context& io_;
  const std::chrono::milliseconds end_limit_;
  std::shared_ptr<Queue> queue_;
  std::thread thread_;
};

}  // namespace ddp::base
