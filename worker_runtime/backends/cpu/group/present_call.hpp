// The call that a group is carrying out, and what the flight recorder hears of calls.
//
// A call that is made while nothing else runs is recorded late: this rank arrives at it first. The recording then takes
// its time while the arrival is on its way to the other ranks.
//
// Threads: record() and refuse() any; the rest those of the queue's jobs, one at a time.
#pragma once

#include <chrono>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/deadline.hpp"
#include "worker_runtime/core/operation/operation_life.hpp"
#include "worker_runtime/flight_recorder/group_log.hpp"
#include "worker_runtime/flight_recorder/quick_clock.hpp"
#include "worker_runtime/process_group/backend.hpp"
#include "worker_runtime/process_group/deadline_after.hpp"

namespace ddp::cpu_backend {

using flight_recorder::Ticket;
using process_group::Collective;

class PresentCall {
 public:
  explicit PresentCall(flight_recorder::GroupFacts facts) : log_(std::move(facts)) {}
  PresentCall(const PresentCall&) = delete;
  PresentCall& operator=(const PresentCall&) = delete;

  // Records calls that are to stand in line. They are begun as one.
  Ticket record(std::span<const Collective> collectives);
  Ticket record(const flight_recorder::Operation& operation) { return log_.record(operation); }

  // A recorded call will not be carried out.
  void refuse(const Ticket& ticket) { log_.refuse(ticket); }

  // Carries out a recorded call whose turn has come. Its time has run since it was made.
  template <class Steps>
  void run(const Ticket& ticket, base::Deadline& deadline, const Steps& steps);

  // Carries out a call as it is made: steps(deadline). The call is recorded in record_late(), or at its end.
  template <class Steps>
  void run_at_once(const Collective& collective, const Steps& steps);

  // Records the call if that has not been done.
  void record_late() {
    if (late_ != nullptr) record_now();
  }

  // The other ranks see this rank in the call from here on.
  void join() { life_.join(); }

  // The other ranks have given up. If they have not seen this rank in the call, it counts as refused.
  void refuse_unless_joined();

  // Whether what ends the group is another rank's abort(), of which no file is written.
  void set_aborted_elsewhere(bool is_aborted) { is_aborted_elsewhere_ = is_aborted; }

  // A wait found, at this time, that the process had been stopped.
  void set_stopped_at(const base::Deadline& deadline) {
    if (deadline.stopped_at()) stopped_at_ = deadline.stopped_at();
  }

  // Ends the call by what ends the group. Returns the message of the error, with the file that has what was recorded.
  std::string end_by(const std::exception& error);

 private:
  // A call that is not recorded yet.
  struct Late {
    const Collective& collective;
    base::Deadline deadline;
  };

  void begin() {
    core::OperationLife life;
    static_cast<void>(life.start());
    life_ = life;
  }
  void record_now();
  void fail();

  flight_recorder::GroupLog log_;
  flight_recorder::QuickClock clock_;
  std::optional<base::Deadline::TimePoint> stopped_at_;  // the last time
  std::optional<Ticket> ticket_;                         // of the call, once it is recorded
  core::OperationLife life_;                             // of the call
  Late* late_ = nullptr;                                 // the call, until it is recorded
  bool is_aborted_elsewhere_ = false;
};

template <class Steps>
void PresentCall::run(const Ticket& ticket, base::Deadline& deadline, const Steps& steps) {
  log_.start(ticket);
  ticket_ = ticket;
  begin();
  try {
    deadline.begin(std::chrono::steady_clock::now(), stopped_at_);
    steps();
    set_stopped_at(deadline);
  } catch (...) {
    fail();
    throw;
  }
  ticket_.reset();
  if (life_.complete()) log_.complete(ticket);
}

template <class Steps>
void PresentCall::run_at_once(const Collective& collective, const Steps& steps) {
  Late late{collective, process_group::deadline_after(collective.timeout, {})};
  late_ = &late;
  begin();
  try {
    steps(late.deadline);
  } catch (...) {
    record_late();
    fail();
    throw;
  }
  set_stopped_at(late.deadline);
  const Ticket ticket = *std::exchange(ticket_, std::nullopt);
  if (life_.complete()) log_.complete_newest(ticket, clock_.now().wall);
}

}  // namespace ddp::cpu_backend
