// What the parts of a group share. It lives as long as a work or memory of the group does.
//
// Fork: a forked child leaks it.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/fork_guard.hpp"
#include "worker_runtime/backends/nccl/communicator.hpp"
#include "worker_runtime/backends/nccl/cuda.hpp"
#include "worker_runtime/backends/nccl/event_pool.hpp"
#include "worker_runtime/backends/nccl/under_way.hpp"
#include "worker_runtime/core/failure/failed_group.hpp"
#include "worker_runtime/core/failure/failure.hpp"
#include "worker_runtime/core/operation/group_status.hpp"
#include "worker_runtime/flight_recorder/group_log.hpp"

namespace ddp::nccl_backend {

struct GroupState {
  // device: current when this is made
  GroupState(core::FailedGroup place_, int device_, std::unique_ptr<Communicator> communicator_,
             flight_recorder::GroupFacts facts)
      : place(std::move(place_)),
        device(device_),
        communicator(std::move(communicator_)),
        log(std::move(facts)),
        under_way(place.who.rank, log, status) {}

  // Of what is no failure of one operation.
  core::Failure failure(core::Cause cause, const std::string& what) const {
    return {.cause = cause, .rank = place.who.rank, .what = what};
  }

  base::ForkGuard fork_guard{};
  core::FailedGroup place;
  int device;
  std::unique_ptr<Communicator> communicator;  // settled
  Stream stream{};
  std::shared_ptr<EventPool> events = std::make_shared<EventPool>();
  flight_recorder::GroupLog log;
  std::shared_ptr<core::GroupStatus> status = std::make_shared<core::GroupStatus>();
  UnderWay under_way;
};

}  // namespace ddp::nccl_backend
