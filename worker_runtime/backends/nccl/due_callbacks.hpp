// The callbacks of a group's works that are to be called, and those that are being called on the thread for them
// (core/callbacks).
//
// Threads: any.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "worker_runtime/core/operation/group_status.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::nccl_backend {

class DueCallbacks : public std::enable_shared_from_this<DueCallbacks> {
 public:
  using Callbacks = std::vector<Work::State::Callback>;

  // status: of the group; its error is that of works that failed.
  explicit DueCallbacks(std::shared_ptr<core::GroupStatus> status) : status_(std::move(status)) {}

  // Takes them over; they are called after the next post().
  void add_of_done(Callbacks& callbacks);
  void add_of_failed(Callbacks& callbacks);

  // Has them called. To be called without a lock, because they are called at once where no thread can be had. What they
  // hold may be the last handle of the group.
  void post();

  // Returns once none is being called; at once in a callback.
  void wait_until_called();

 private:
  std::shared_ptr<core::GroupStatus> status_;
  std::mutex mutex_;  // guards the rest
  std::condition_variable called_;
  Callbacks of_done_, of_failed_;
  int posted_ = 0;  // posts whose callbacks have not all returned
};

}  // namespace ddp::nccl_backend
