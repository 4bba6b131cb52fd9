// A backend's hold on the flight recorder for one of its groups; see recorder.hpp.
//
//   const auto ticket = log.record(operation_of(collective));   // when the program calls
//   log.start(ticket);                                          // when its turn has come
//   log.complete(ticket);                                       // or fail(ticket); then, once for the group:
//   throw TimeoutError(message + log.write_failure(message), ranks);
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "worker_runtime/flight_recorder/recorder.hpp"
#include "worker_runtime/process_group/backend.hpp"
#include "worker_runtime/trace/tracer.hpp"

namespace ddp::flight_recorder {

// What the recorder of this process holds, written to this rank's files (failure_files.hpp) where all its groups end at
// once: of the round of its newest group. Returns and costs what GroupLog::write_failure does.
std::string write_process_failure(const std::string& reason) noexcept;

// What the recorder keeps of a collective, and of memory that all ranks make together. Pure.
Operation operation_of(const process_group::Collective& collective);
Operation allocation_of(std::size_t bytes, std::chrono::milliseconds timeout);

class GroupLog {
 public:
  explicit GroupLog(GroupFacts facts, Recorder& recorder = process_recorder())
      : recorder_(recorder), id_(recorder_.open(std::move(facts))), completion_(recorder_.completion_of(id_)) {}
  ~GroupLog() { recorder_.close(id_); }
  GroupLog(const GroupLog&) = delete;
  GroupLog& operator=(const GroupLog&) = delete;

  Ticket record(const Operation& operation) { return recorder_.record(id_, operation); }
  Ticket record(std::span<const Operation> coalesced) { return recorder_.record(id_, coalesced); }
  Ticket record_started(const Operation& operation, TimePoint at) {
    return recorder_.record_started(id_, operation, at);
  }
  void start(const Ticket& ticket, TimePoint at = now()) { recorder_.start(ticket, at); }
  void complete(const Ticket& ticket, TimePoint at = now()) { recorder_.complete(ticket, at); }

  // The same for one that NewestCompletion is for.
  void complete_newest(const Ticket& ticket, TimePoint at) {
    if (trace::is_on()) return complete(ticket, at);  // whose reader looks for nothing here
    completion_.say(ticket, at);
  }
  void fail(const Ticket& ticket, TimePoint at = now()) { recorder_.fail(ticket, at); }
  void refuse(const Ticket& ticket) { recorder_.refuse(ticket); }

  // Writes what the process has recorded in the group's round to the files of this rank (failure_files.hpp) and returns
  // the line that an error's message ends with: "\nlook:  <path>", or why there is no file; empty where none is wanted.
  // Never throws. Takes some milliseconds with a full ring, and at most 5 s if the disk hangs: tell the other ranks of
  // the failure first. The files are then written later, or never.
  std::string write_failure(const std::string& reason) const noexcept;

 private:
  Recorder& recorder_;
  GroupId id_;
  NewestCompletion& completion_;
};

}  // namespace ddp::flight_recorder
