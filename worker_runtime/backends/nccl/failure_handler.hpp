// Deals with the failure of a group: tells the other ranks, aborts the communicator, hears how far all ranks came, and
// makes the error of that (core/failure/judge.hpp). It has a thread, which sleeps until this rank or another one finds
// a failure.
//
// Threads: fail(), fail_by(), abort(), is_handled() and listener() from any, all else from that which closes the group.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <thread>

#include "base/cut.hpp"
#include "worker_runtime/backends/nccl/device_progress.hpp"
#include "worker_runtime/backends/nccl/failure_board.hpp"
#include "worker_runtime/backends/nccl/group_state.hpp"
#include "worker_runtime/core/failure/failure_listener.hpp"
#include "worker_runtime/core/failure/verdict.hpp"

namespace ddp::nccl_backend {

class FailureHandler {
 public:
  // board: where ranks tell each other; none: there is nobody to tell
  FailureHandler(GroupState& group, DeviceProgress& progress, std::optional<FailureBoard::Place> board);

  void start();

  // Ends the thread, once it has handled a failure.
  void stop();

  // The group has failed. The first failure counts.
  void fail(const core::Failure& failure);
  void fail_by(core::Failure call, const Outcome& outcome);  // what a call, or the wait for it, ended with
  core::Failure failure_in(const Operation& operation) const;

  void abort(const std::string& reason, process_group::AbortCause cause);

  // After stop().
  void handle_if_new();  // a failure that was found since
  void leave();          // in good order: nothing is under way

  bool is_handled() const { return is_handled_; }
  core::FailureListener& listener() { return listener_; }
  const FailureBoard::Place* board_place() const { return board_ ? &board_->place() : nullptr; }

 private:
  void stand_guard();
  void listen();
  void handle();
  core::Verdict verdict_of(const core::Failure& first, const core::RankProgress& own, bool has_told);
  void abort_communicator();
  void end_if_sticky() const;
  void say_that_it_left();
  void tell_listener();

  GroupState& group_;
  DeviceProgress& progress_;
  std::optional<FailureBoard> board_;  // the thread's
  base::Cut wake_;                     // ends the thread's sleep
  base::Cut hurry_;                    // ends what it asks of the store
  std::atomic<bool> is_handled_{false};
  bool is_taken_ = false;  // the thread's, and handle_if_new()'s once that has ended
  core::FailureListener listener_;
  std::thread thread_;
};

}  // namespace ddp::nccl_backend
