// One call of a group, or several that were coalesced, from when it is begun until the device has done it.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "base/deadline.hpp"
#include "worker_runtime/backends/nccl/cuda.hpp"
#include "worker_runtime/core/operation/operation.hpp"
#include "worker_runtime/flight_recorder/recorder.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::nccl_backend {

struct GroupState;

class Operation : public core::Operation, public Work::State {
 public:
  struct Events {
    std::shared_ptr<Event> begin, end;
  };

  // streams: of the callers, each once.
  Operation(std::shared_ptr<GroupState> group, std::span<const process_group::Collective> calls,
            std::vector<cudaStream_t> streams, const flight_recorder::Ticket& ticket, const base::Deadline& deadline,
            Events events);

  // Orders the streams of its calls behind it; a barrier blocks. Throws what the group failed with before it was done.
  void wait() override;
  bool is_completed() const override;
  std::optional<std::chrono::nanoseconds> duration() const override;
  bool wait_until(std::chrono::steady_clock::time_point end) override;
  void on_completed(Callback callback) override;

  const std::shared_ptr<Event>& begin_event() const { return begin_; }
  const std::shared_ptr<Event>& end_event() const { return end_; }
  const std::vector<cudaStream_t>& streams() const { return streams_; }  // of the callers, each once

  // UnderWay's, with its mutex held, as are `life` and `is_launched`.
  void set_done() { is_done_ = true; }
  std::vector<Callback>& callbacks() { return callbacks_; }  // none once they are due

 private:
  void wait_on_host();

  std::shared_ptr<GroupState> group_;
  std::vector<cudaStream_t> streams_;
  bool blocks_host_ = false;
  std::shared_ptr<Event> begin_, end_;
  std::atomic<bool> is_done_{false};
  std::vector<Callback> callbacks_;
};

}  // namespace ddp::nccl_backend
