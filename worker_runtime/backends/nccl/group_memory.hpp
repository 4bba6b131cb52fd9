// Memory that all ranks of a group allocate together: registered with NCCL on all of them, or on none.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "worker_runtime/backends/nccl/cuda.hpp"
#include "worker_runtime/backends/nccl/failure_handler.hpp"
#include "worker_runtime/backends/nccl/group_state.hpp"
#include "worker_runtime/backends/nccl/launch.hpp"
#include "worker_runtime/backends/nccl/group_calls.hpp"

namespace ddp::nccl_backend {

class GroupMemory {
 public:
  GroupMemory(std::shared_ptr<GroupState> group, GroupCalls& calls, FailureHandler& failure);

  // Collective. The memory keeps the group's state alive.
  RegisteredMemory allocate(std::size_t bytes, std::chrono::milliseconds timeout);

 private:
  using Words = std::vector<std::int64_t>;

  Words exchange(const std::array<std::int64_t, kWordsPerRank>& own, std::size_t bytes,
                 std::chrono::milliseconds timeout);
  void require_same_sizes(const Words& all);

  std::shared_ptr<GroupState> group_;
  GroupCalls& calls_;
  FailureHandler& failure_;
  PinnedMemory words_on_host_;
};

}  // namespace ddp::nccl_backend
