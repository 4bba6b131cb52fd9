// The operations that a group has under way, who waits for them, and what the flight recorder is told of them: a
// core::OperationLine behind a lock.
//
// Threads: enter() to launch() from one at a time, which no other call comes between; all else from any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "worker_runtime/backends/nccl/due_callbacks.hpp"
#include "worker_runtime/backends/nccl/operation.hpp"
#include "worker_runtime/core/failure/failure.hpp"
#include "worker_runtime/core/failure/rank_progress.hpp"
#include "worker_runtime/core/operation/group_status.hpp"
#include "worker_runtime/core/operation/operation_line.hpp"
#include "worker_runtime/flight_recorder/group_log.hpp"

namespace ddp::nccl_backend {

class UnderWay {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // log: outlives it. rank, status: of the group.
  UnderWay(int rank, flight_recorder::GroupLog& log, std::shared_ptr<core::GroupStatus> status);

  // Records the calls, and makes them known to whoever asks how far this rank came. Throws Error where too many are
  // under way.
  std::shared_ptr<Operation> enter(const std::shared_ptr<GroupState>& group,
                                   std::span<const process_group::Collective> calls, std::vector<cudaStream_t> streams);
  void take_back(Operation& operation);  // nothing of it was begun
  void launch(Operation& operation);     // the device has it, and its events are recorded
  bool is_launched(const Operation& operation) const;

  // A collective that has come to its end before the next call.
  void note(const char* name, std::uint64_t number);

  // False where the operation has ended: then the callback is the caller's to call.
  bool add_callback(Operation& operation, Work::State::Callback& callback);
  void post_callbacks() { callbacks_->post(); }
  void wait_for_callbacks() { callbacks_->wait_until_called(); }

  // What the device has done, in the order of the calls.
  struct Front {
    std::shared_ptr<Operation> operation;  // the oldest; null: none, or it is not launched
    bool has_started = false;
  };
  Front front() const;
  void start(Operation& operation, flight_recorder::TimePoint at);
  bool complete(Operation& operation, flight_recorder::TimePoint at);  // false: a failure has ended it meanwhile

  // Ends all: the group has failed.
  void end_all();

  bool is_idle() const;

  // Returns once nothing is under way, or the group has failed, or at `limit`.
  void wait_until_idle(std::optional<std::chrono::milliseconds> limit = std::nullopt);
  void wake_waiting();  // the group has failed

  // As OperationLine.
  std::shared_ptr<Operation> oldest() const;
  std::shared_ptr<Operation> newest_started() const;
  std::optional<core::Failure> late(TimePoint now);
  void depart(core::Failure departure);
  std::optional<core::Failure> departure_in_vain() const;
  core::RankProgress progress() const;

 private:
  flight_recorder::GroupLog& log_;
  std::shared_ptr<core::GroupStatus> status_;
  std::shared_ptr<DueCallbacks> callbacks_;
  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable became_idle_;
  core::OperationLine<Operation> line_;
};

}  // namespace ddp::nccl_backend
