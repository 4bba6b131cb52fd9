#include "worker_runtime/core/callbacks/callbacks.hpp"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <utility>

#include "base/process_wide.hpp"
#include "base/quiet_thread.hpp"

namespace ddp::core {

namespace {

thread_local bool is_this_thread = false;

class Callbacks {
 public:
  // Takes `call` only if it returns.
  void post(std::function<void()>& call) {
    const std::lock_guard lock(mutex_);
    if (!has_thread_) base::start_quiet_thread([this] { run(); }).detach();
    has_thread_ = true;
    calls_.push_back(std::move(call));
    came_.notify_one();
  }

 private:
  void run() {
    is_this_thread = true;
    std::unique_lock lock(mutex_);
    for (;;) {
      came_.wait(lock, [this] { return !calls_.empty(); });
      auto call = std::move(calls_.front());
      calls_.pop_front();
      lock.unlock();
      call();
      call = nullptr;  // what it holds may post, or end a group
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<std::function<void()>> calls_;  // guarded by mutex_, as is the next
  bool has_thread_ = false;
};

}  // namespace

void post_callback(std::function<void()> call) {
  try {
    return base::process_wide<Callbacks>().post(call);
  } catch (const std::exception&) {  // neither memory nor a thread can be had
  }
  call();
}

bool is_callback_thread() { return is_this_thread; }

}  // namespace ddp::core
