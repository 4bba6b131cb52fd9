#include "worker_runtime/backends/nccl/operation.hpp"

#include <algorithm>
#include <utility>

#include "worker_runtime/backends/nccl/event_wait.hpp"
#include "worker_runtime/backends/nccl/group_state.hpp"

namespace ddp::nccl_backend {

using process_group::Collective;
using process_group::CollectiveKind;

Operation::Operation(std::shared_ptr<GroupState> group, std::span<const Collective> calls,
                     std::vector<cudaStream_t> streams, const flight_recorder::Ticket& ticket,
                     const base::Deadline& deadline_, Events events)
    : core::Operation(calls, ticket, deadline_),
      group_(std::move(group)),
      streams_(std::move(streams)),
      begin_(std::move(events.begin)),
      end_(std::move(events.end)) {
  for (const Collective& call : calls) blocks_host_ = blocks_host_ || call.kind == CollectiveKind::barrier;
}

void Operation::wait() {
  group_->fork_guard.require_own_process();
  if (is_done_) return;
  group_->status->throw_if_failed();
  if (blocks_host_) return wait_on_host();
  const DeviceGuard guard(group_->device);
  for (auto* const stream : streams_) end_->hold_up(stream);
}

void Operation::wait_on_host() {
  EventWaits::of_process().wait(*end_, group_->device);
  if (!is_done_) group_->status->throw_if_failed();  // an abort ends it, too
}

bool Operation::is_completed() const {
  if (group_->fork_guard.in_forked_child() || is_done_) return true;
  if (group_->status->has_failed()) return group_->status->has_verdict();
  const DeviceGuard guard(group_->device);
  const RelaxedCapture relaxed;
  return group_->under_way.is_launched(*this) && end_->has_come();
}

// The group's watching thread may see the end later than the caller does.
std::optional<std::chrono::nanoseconds> Operation::duration() const {
  if (group_->fork_guard.in_forked_child()) return std::nullopt;
  const DeviceGuard guard(group_->device);
  const RelaxedCapture relaxed;
  const bool is_over =
      is_done_ || (!group_->status->has_failed() && group_->under_way.is_launched(*this) && end_->has_come());
  if (!is_over) return std::nullopt;
  const std::chrono::duration<double, std::milli> took(milliseconds_between(*begin_, *end_));
  return std::chrono::duration_cast<std::chrono::nanoseconds>(took);
}

bool Operation::wait_until(std::chrono::steady_clock::time_point end) {
  group_->fork_guard.require_own_process();
  if (is_done_) return true;
  group_->status->throw_if_failed();
  const bool has_come = EventWaits::of_process().wait_until(*end_, group_->device, end);
  if (!is_done_) group_->status->throw_if_failed();
  return has_come || is_done_;
}

void Operation::on_completed(Callback callback) {
  group_->fork_guard.require_own_process();
  if (group_->under_way.add_callback(*this, callback)) return;
  call(callback, is_done_ ? nullptr : group_->status->error());
}

}  // namespace ddp::nccl_backend
