// One call of a group, or several that were coalesced, from when it is begun until the device has done it.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "rendezvous/io/deadline.hpp"
#include "worker_runtime/backends/nccl/cuda.hpp"
#include "worker_runtime/flight_recorder/group_log.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::nccl_backend {

class Group;

class Operation : public Work::State {
 public:
  struct Events {  // made without a lock, as CUDA may take long for them
    std::shared_ptr<Event> begin = std::make_shared<Event>(Event::Timing::on);
    std::shared_ptr<Event> end = std::make_shared<Event>(Event::Timing::on);
  };

  Operation(std::shared_ptr<Group> group, std::span<const process_group::Collective> calls,
            const flight_recorder::Ticket& ticket, const io::Deadline& deadline, Events events);

  // Orders the streams of its calls behind it; a barrier blocks. Throws what the group failed with before it was done.
  void wait() override;
  bool is_completed() const override;
  bool wait_until(std::chrono::steady_clock::time_point end) override;
  void on_completed(Callback callback) override;

 private:
  friend class Group;

  bool is_point_to_point() const { return is_point_to_point_; }
  std::uint64_t number() const { return is_point_to_point_ ? 0 : ticket_.collective_sequence; }

  std::shared_ptr<Group> group_;
  flight_recorder::Ticket ticket_;
  io::Deadline deadline_;  // the caller's until is_enqueued_, the watching thread's from then on
  process_group::Collective first_call_;
  std::size_t call_count_;
  std::size_t bytes_ = 0;
  std::vector<int> peers_;
  std::vector<cudaStream_t> streams_;  // of the callers, each once
  bool is_point_to_point_ = true;      // all of it
  bool blocks_host_ = false;
  std::shared_ptr<Event> begin_, end_;
  std::atomic<bool> is_enqueued_{false};
  std::atomic<bool> has_started_{false};
  std::atomic<bool> is_done_{false};
  std::vector<Callback> callbacks_;  // guarded by the group's mutex; none once they are called
};

}  // namespace ddp::nccl_backend
