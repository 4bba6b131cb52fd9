// A group, as the flight recorder keeps it: the numbers of its calls, and how far they have come.
//
// Threads: one caller at a time; `completion` as NewestCompletion says.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "worker_runtime/flight_recorder/entry.hpp"
#include "worker_runtime/flight_recorder/newest_completion.hpp"

namespace ddp::flight_recorder {

inline bool has_ended(State state) { return state != State::scheduled && state != State::started; }

struct RecordedGroup {
  GroupStatus status;
  std::string track;                       // of the timeline
  std::uint64_t collective_count = 0;      // of calls
  std::uint64_t point_to_point_count = 0;  // of calls
  std::uint64_t operation_count = 0;
  std::size_t entry_count = 0;  // of them in the ring
  NewestCompletion completion;

  std::uint64_t& count_of(bool is_point_to_point) {
    return is_point_to_point ? point_to_point_count : collective_count;
  }

  // Of an operation of the call that was counted last.
  Entry make_entry(std::uint64_t record, const Operation& operation, bool is_counted_as_point_to_point, TimePoint at) {
    ++entry_count;
    return {.record = record,
            .group = status.id,
            .collective_sequence = collective_count,
            .point_to_point_sequence = point_to_point_count,
            .operation_number = ++operation_count,
            .operation = operation,
            .is_point_to_point = is_counted_as_point_to_point,
            .created = at};
  }

  void start(Entry& entry, TimePoint at) {
    entry.state = State::started;
    entry.started = at;
    if (!entry.is_point_to_point) status.last_started = std::max(status.last_started, entry.collective_sequence);
  }

  // What has ended stays as it is.
  void end(Entry& entry, State state, TimePoint at) {
    if (has_ended(entry.state)) return;
    entry.ended = at;
    if (entry.started == TimePoint{} && state == State::completed) entry.started = at;  // seen only now
    entry.state = state;
    if (!entry.is_point_to_point && state == State::completed) {
      status.last_started = std::max(status.last_started, entry.collective_sequence);
      status.last_completed = std::max(status.last_completed, entry.collective_sequence);
    }
  }

  // Takes back the call that was counted last, which had so many entries: the next one gets its numbers.
  void uncount(bool is_point_to_point, std::uint64_t entries) {
    operation_count -= entries;
    --count_of(is_point_to_point);
    status.last_started = std::min(status.last_started, collective_count);
  }
};

}  // namespace ddp::flight_recorder
