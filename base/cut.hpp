// Ends another thread's waits before their time: a wait that is given a Cut throws AbortedError as soon as it is cut.
//
// Waits in poll() watch its descriptor. Those that can't, such as on a futex, register what wakes them.
//
// Threads: any.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "base/event_fd.hpp"
#include "ddp/error.hpp"

namespace ddp::base {

class Cut {
 public:
  // Throws std::system_error.
  Cut() : event_(make_event()) {}
  Cut(const Cut&) = delete;
  Cut& operator=(const Cut&) = delete;

  // The first reason counts.
  void cut(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (is_cut_.load()) return;
    why_ = why;
    is_cut_.store(true);
    if (wake_) wake_();
    ring(event_);
  }

  bool is_cut() const { return is_cut_.load(); }
  int descriptor() const { return event_.get(); }  // readable once it is cut

  void throw_if_cut() const {
    if (!is_cut()) return;
    const std::lock_guard lock(mutex_);
    throw AbortedError(why_);
  }

  // While it lives cut() calls `wake`; at once where it is cut already. One at a time; none for a null pointer.
  class Waker {
   public:
    Waker(Cut* cut, std::function<void()> wake) : cut_(cut) {
      if (cut_ == nullptr) return;
      const std::lock_guard lock(cut_->mutex_);
      if (cut_->is_cut_.load()) wake();
      cut_->wake_ = std::move(wake);
    }
    ~Waker() {
      if (cut_ == nullptr) return;
      const std::lock_guard lock(cut_->mutex_);
      cut_->wake_ = nullptr;
    }
    Waker(const Waker&) = delete;
    Waker& operator=(const Waker&) = delete;

   private:
    Cut* cut_;
  };

 private:
  UniqueFd event_;
  std::atomic<bool> is_cut_{false};
  mutable std::mutex mutex_;
  std::string why_;  // guarded by mutex_, as is the next
  std::function<void()> wake_;
};

// Sleeps; a cut ends it, by AbortedError. Without one (null) it only sleeps.
inline void sleep_until(std::chrono::steady_clock::time_point end, const Cut* cut) {
  using Clock = std::chrono::steady_clock;
  for (auto now = Clock::now(); now < end; now = Clock::now()) {
    pollfd polled{cut == nullptr ? -1 : cut->descriptor(), POLLIN, 0};
    ::poll(&polled, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(end - now).count()));
    if (cut != nullptr) cut->throw_if_cut();
  }
}

}  // namespace ddp::base
