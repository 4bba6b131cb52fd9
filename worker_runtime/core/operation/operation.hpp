// One call of a group, or several that were coalesced: what it is, its number, its deadline, and how far it has come.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "worker_runtime/core/failure/failure.hpp"
#include "worker_runtime/core/operation/operation_life.hpp"
#include "worker_runtime/flight_recorder/recorder.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::core {

class Operation {
 public:
  // Requires at least one call. `ticket` is that of the flight recorder for all of them.
  Operation(std::span<const process_group::Collective> calls, const flight_recorder::Ticket& ticket,
            const base::Deadline& deadline);

  const flight_recorder::Ticket& ticket() const { return ticket_; }

  // Of the collective, from 1. 0: all calls are sends and receives.
  std::uint64_t number() const { return is_point_to_point() ? 0 : ticket_.collective_sequence; }
  bool is_point_to_point() const { return !peers_.empty(); }

  // "2 coalesced calls, the first all_reduce of 100 float32 (sum)"
  std::string describe() const;
  const process_group::Collective& first_call() const { return first_call_; }

  // That rank `rank` finds while the operation is under way.
  Failure failure(Cause cause, int rank) const;

  OperationLife life{};
  base::Deadline deadline;
  bool is_launched = false;  // the device has it: its end is waited for

 private:
  flight_recorder::Ticket ticket_;
  process_group::Collective first_call_;
  std::size_t call_count_;
  std::size_t bytes_ = 0;
  std::vector<int> peers_;  // where all calls are sends and receives: the other ranks, each once
};

}  // namespace ddp::core
