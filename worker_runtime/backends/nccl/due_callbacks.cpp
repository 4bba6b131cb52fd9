#include "worker_runtime/backends/nccl/due_callbacks.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "worker_runtime/core/callbacks/callbacks.hpp"

namespace ddp::nccl_backend {

namespace {

void move_to(DueCallbacks::Callbacks& to, DueCallbacks::Callbacks& from) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
  from.clear();
}

}  // namespace

void DueCallbacks::add_of_done(Callbacks& callbacks) {
  const std::lock_guard lock(mutex_);
  move_to(of_done_, callbacks);
}

void DueCallbacks::add_of_failed(Callbacks& callbacks) {
  const std::lock_guard lock(mutex_);
  move_to(of_failed_, callbacks);
}

void DueCallbacks::post() {
  std::unique_lock lock(mutex_);
  if (of_done_.empty() && of_failed_.empty()) return;
  ++posted_;
  auto of_done = std::exchange(of_done_, {});
  auto of_failed = std::exchange(of_failed_, {});
  lock.unlock();
  core::post_callback(
      [self = shared_from_this(), of_done = std::move(of_done), of_failed = std::move(of_failed)]() mutable {
        for (const auto& callback : of_done) Work::State::call(callback, nullptr);
        for (const auto& callback : of_failed) Work::State::call(callback, self->status_->error());
        of_done.clear();  // what they hold may be the last handle of the group
        of_failed.clear();
        const std::lock_guard lock(self->mutex_);
        --self->posted_;
        self->called_.notify_all();
      });
}

void DueCallbacks::wait_until_called() {
  if (core::is_callback_thread()) return;
  std::unique_lock lock(mutex_);
  called_.wait(lock, [this] { return posted_ == 0; });
}

}  // namespace ddp::nccl_backend
