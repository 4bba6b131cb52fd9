#include "worker_runtime/backends/nccl/operation.hpp"

#include "worker_runtime/backends/nccl/group.hpp"

namespace ddp::nccl_backend {

using process_group::Collective;
using process_group::CollectiveKind;

Operation::Operation(std::shared_ptr<Group> group, std::span<const Collective> calls,
                     const flight_recorder::Ticket& ticket, const io::Deadline& deadline, Events events)
    : group_(std::move(group)),
      ticket_(ticket),
      deadline_(deadline),
      first_call_(calls.front()),
      call_count_(calls.size()),
      begin_(std::move(events.begin)),
      end_(std::move(events.end)) {
  for (const Collective& call : calls) {
    bytes_ += std::max(call.input.bytes(), call.output.bytes());
    const bool is_pair = call.kind == CollectiveKind::send || call.kind == CollectiveKind::receive;
    is_point_to_point_ = is_point_to_point_ && is_pair;
    if (is_pair && std::find(peers_.begin(), peers_.end(), call.root) == peers_.end()) peers_.push_back(call.root);
    blocks_host_ = blocks_host_ || call.kind == CollectiveKind::barrier;
    auto* const stream = static_cast<cudaStream_t>(call.stream);
    if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
  }
  if (!is_point_to_point_) peers_.clear();
}

void Operation::wait() { group_->wait(*this); }

bool Operation::is_completed() const { return group_->is_over(*this); }

bool Operation::wait_until(std::chrono::steady_clock::time_point end) { return group_->wait_until(*this, end); }

void Operation::on_completed(Callback callback) { group_->on_completed(*this, std::move(callback)); }

}  // namespace ddp::nccl_backend
