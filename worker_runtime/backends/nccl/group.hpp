// A group of the nccl backend, put together of parts with one task each:
//
//   GroupState       what the parts share: communicator, stream, status; it outlives the group for works and memory
//   UnderWay         the operations under way, and what waits for them
//   GroupCalls       puts calls on the stream
//   DeviceProgress   finds out what the device has done
//   FailureHandler   deals with a failure, on a thread of its own
//   GroupMemory      memory that all ranks allocate together
//
// The watching thread (watch.hpp) calls look(): at the device's progress, at deadlines, and at what NCCL found.
//
// Threads: begin(), allocate() and split() from one at a time; close() from one, after which no call comes; all else
//          from any.
// Fork:    a forked child leaks it.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker_runtime/backends/nccl/communicator.hpp"
#include "worker_runtime/backends/nccl/device_progress.hpp"
#include "worker_runtime/backends/nccl/failure_board.hpp"
#include "worker_runtime/backends/nccl/failure_handler.hpp"
#include "worker_runtime/backends/nccl/group_memory.hpp"
#include "worker_runtime/backends/nccl/group_state.hpp"
#include "worker_runtime/backends/nccl/group_calls.hpp"
#include "worker_runtime/backends/nccl/watch.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::nccl_backend {

// What a group is made of.
struct GroupParts {
  process_group::GroupMember who{};
  int device = 0;                                // current when the group is made
  std::unique_ptr<Communicator> communicator{};  // settled
  std::optional<FailureBoard::Place> board{};    // none: there is nobody to tell
  std::vector<int> job_ranks{};                  // of the whole job, by rank here
};

class Group : public Watched {
 public:
  static std::unique_ptr<Group> make(GroupParts parts);

  // Ends it: waits a little for what is under way, aborts it where that takes longer, and gives the communicator back.
  void close();

  int device() const { return state_->device; }
  std::shared_ptr<core::GroupStatus> status() const { return state_->status; }
  void require_own_process() const { state_->fork_guard.require_own_process(); }
  bool in_forked_child() const { return state_->fork_guard.in_forked_child(); }

  std::shared_ptr<Work::State> begin(std::span<const process_group::Collective> calls) { return calls_.begin(calls); }

  RegisteredMemory allocate(std::size_t bytes, std::chrono::milliseconds timeout) {
    return memory_.allocate(bytes, timeout);
  }

  // As process_group::Backend::split; null for one that is in no new group.
  std::unique_ptr<Group> split(const process_group::GroupMember& of_new, const std::vector<int>& ranks,
                               std::chrono::milliseconds timeout);

  void abort(const std::string& reason, process_group::AbortCause cause) { failure_.abort(reason, cause); }
  void set_failure_listener(process_group::Backend::FailureListener tell) { failure_.listener().set(std::move(tell)); }

  Look look(std::chrono::steady_clock::time_point now) override;

 private:
  explicit Group(GroupParts parts);
  void start();
  std::unique_ptr<Communicator> split_communicator(int color, const process_group::GroupMember& of_new,
                                                   std::chrono::milliseconds timeout);
  void look_at_communicator();

  std::shared_ptr<GroupState> state_;
  DeviceProgress progress_;
  FailureHandler failure_;
  GroupCalls calls_;
  GroupMemory memory_;
  bool is_closed_ = false;
};

}  // namespace ddp::nccl_backend
