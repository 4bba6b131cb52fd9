// Puts the calls of a group on its stream.
//
// A call stands between two events: the first comes once all is done that the callers' streams hold, and those streams
// wait for the second; the host goes on. A call on a stream that is captured becomes part of that CUDA graph.
//
// Threads: one at a time; has_captured() from any.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "worker_runtime/backends/nccl/failure_handler.hpp"
#include "worker_runtime/backends/nccl/group_state.hpp"

namespace ddp::nccl_backend {

class GroupCalls {
 public:
  GroupCalls(std::shared_ptr<GroupState> group, FailureHandler& failure);

  // Begins the calls as one. Throws InvalidArgument for what NCCL can't do, or what the group failed with.
  std::shared_ptr<Work::State> begin(std::span<const process_group::Collective> calls);

  // Whether graphs with calls of this group may be launched, which it does not notice.
  bool has_captured() const { return has_captured_; }

  // On the device, kWordsPerRank for each rank: what ranks exchange for an allocation, and in a barrier.
  std::int64_t* words() const { return static_cast<std::int64_t*>(words_.data()); }
  std::size_t words_bytes() const;

 private:
  void order_behind(const std::vector<cudaStream_t>& streams);
  bool is_in_capture(const std::vector<cudaStream_t>& streams) const;
  std::shared_ptr<Work::State> capture(std::span<const process_group::Collective> calls,
                                       std::vector<cudaStream_t> streams);
  Outcome enqueue(std::span<const process_group::Collective> calls);
  [[noreturn]] void throw_refused(const std::string& operation, const std::string& why);

  std::shared_ptr<GroupState> group_;
  FailureHandler& failure_;
  Event before_;
  DeviceBuffer words_;
  std::atomic<bool> has_captured_{false};
};

}  // namespace ddp::nccl_backend
