#include "worker_runtime/flight_recorder/recorder.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/process_wide.hpp"
#include "worker_runtime/trace/tracer.hpp"

namespace ddp::flight_recorder {

namespace {

constexpr Operation kEndOfCoalesced{.name = "coalesced"};  // PyTorch's analyser knows a coalesced call by it

bool is_point_to_point(const Operation& operation) { return operation.peer >= 0; }

std::string track_of(const GroupFacts& facts) {
  return facts.track.empty() ? facts.backend + " " + facts.name : facts.track;
}

void trace_entry(const RecordedGroup& group, const Entry& entry) {
  const Operation& operation = entry.operation;
  trace::tracer().add(
      {.track = group.track,
       .name = operation.name,
       .begin = entry.started,
       .end = entry.ended,
       .collective = {{.sequence = entry.is_point_to_point ? entry.point_to_point_sequence : entry.collective_sequence,
                       .bytes = std::max(operation.input_count, operation.output_count) * operation.element_bytes,
                       .called = entry.created,
                       .has_failed = entry.state == State::failed}}});
}

}  // namespace

void Recorder::begin_round(const std::string& round) {
  const std::lock_guard lock(mutex_);
  groups_.begin_round(round, ring_.next_record());
}

GroupId Recorder::open(GroupFacts facts) {
  auto group = std::make_unique<RecordedGroup>();
  group->track = track_of(facts);
  group->status.facts = std::move(facts);
  const std::lock_guard lock(mutex_);
  return groups_.add(std::move(group));
}

void Recorder::close(GroupId id) {
  const std::lock_guard lock(mutex_);
  RecordedGroup* const group = groups_.find(id);
  if (group == nullptr) return;
  take_in(*group);
  group->status.is_open = false;
  groups_.remove_if_done(*group);
}

NewestCompletion& Recorder::completion_of(GroupId id) {
  const std::lock_guard lock(mutex_);
  return groups_.find(id)->completion;
}

// With the lock held.
void Recorder::take_in(RecordedGroup& group) {
  const auto said = group.completion.take();
  if (!said) return;
  if (Entry* const entry = ring_.find(said->record)) {
    group.end(*entry, State::completed, said->at);  // no trace: there was none then
  }
}

Ticket Recorder::record(GroupId group, const Operation& operation) {
  return record(group, std::span<const Operation>(&operation, 1));
}

Ticket Recorder::record_started(GroupId id, const Operation& operation, TimePoint at) {
  const std::lock_guard lock(mutex_);
  RecordedGroup& group = *groups_.find(id);
  take_in(group);
  const bool is_apart = is_point_to_point(operation);
  ++group.count_of(is_apart);
  Entry& entry = append(group, operation, is_apart, at);
  entry.state = State::started;
  entry.started = at;
  if (!is_apart) group.status.last_started = group.collective_count;
  return {entry.record, 1, group.collective_count, group.point_to_point_count};
}

Ticket Recorder::record(GroupId id, std::span<const Operation> coalesced) {
  const TimePoint at = now();
  const std::lock_guard lock(mutex_);
  RecordedGroup& group = *groups_.find(id);
  take_in(group);
  const bool is_all_point_to_point = std::all_of(coalesced.begin(), coalesced.end(), is_point_to_point);
  ++group.count_of(is_all_point_to_point);
  const Ticket ticket{ring_.next_record(),
                      static_cast<std::uint32_t>(coalesced.size() + (coalesced.size() > 1 ? 1 : 0)),
                      group.collective_count, group.point_to_point_count};
  for (const Operation& operation : coalesced) append(group, operation, is_all_point_to_point, at);
  if (coalesced.size() > 1) append(group, kEndOfCoalesced, is_all_point_to_point, at);
  return ticket;
}

Entry& Recorder::append(RecordedGroup& group, const Operation& operation, bool is_counted_as_point_to_point,
                        TimePoint at) {
  Entry& entry = ring_.next_entry();
  if (ring_.is_full() && entry.group == group.status.id) {
    --group.entry_count;
  } else if (ring_.is_full()) {
    release_slot(entry);
  }
  entry = group.make_entry(ring_.next_record(), operation, is_counted_as_point_to_point, at);
  ring_.count_record();
  return entry;
}

void Recorder::release_slot(const Entry& overwritten) {
  RecordedGroup* const group = groups_.find(overwritten.group);
  if (group == nullptr) return;
  take_in(*group);  // what has been said of it, as long as it is there
  --group->entry_count;
  groups_.remove_if_done(*group);
}

void Recorder::start(const Ticket& ticket, TimePoint at) {
  const std::lock_guard lock(mutex_);
  for (std::uint64_t record = ticket.record; record < ticket.record + ticket.entry_count; ++record) {
    Entry* const entry = ring_.find(record);
    if (entry == nullptr || entry->state != State::scheduled) continue;
    groups_.find(entry->group)->start(*entry, at);
  }
}

void Recorder::complete(const Ticket& ticket, TimePoint at) { end(ticket, State::completed, at); }
void Recorder::fail(const Ticket& ticket, TimePoint at) { end(ticket, State::failed, at); }

void Recorder::end(const Ticket& ticket, State state, TimePoint at) {
  const std::lock_guard lock(mutex_);
  for (std::uint64_t record = ticket.record; record < ticket.record + ticket.entry_count; ++record) {
    Entry* const entry = ring_.find(record);
    if (entry == nullptr || has_ended(entry->state)) continue;
    RecordedGroup& group = *groups_.find(entry->group);
    group.end(*entry, state, at);
    if (trace::is_on() && entry->started != TimePoint{}) trace_entry(group, *entry);
  }
}

void Recorder::refuse(const Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  RecordedGroup* group = nullptr;
  std::uint64_t last_operation = 0;
  bool is_counted_as_point_to_point = false;
  for (std::uint64_t record = ticket.record; record < ticket.record + ticket.entry_count; ++record) {
    Entry* const entry = ring_.find(record);
    if (entry == nullptr || has_ended(entry->state)) return;
    entry->state = State::refused;
    group = groups_.find(entry->group);
    last_operation = entry->operation_number;
    is_counted_as_point_to_point = entry->is_point_to_point;
  }
  if (group == nullptr || group->operation_count != last_operation) return;
  group->uncount(is_counted_as_point_to_point, ticket.entry_count);
}

bool Recorder::has_incomplete_call() {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, group] : groups_) take_in(*group);
  return ring_.any_of([this](const Entry& entry) {
    const RecordedGroup* const group = groups_.find(entry.group);
    return entry.state != State::completed && entry.state != State::refused && group != nullptr &&
           group->status.is_open;
  });
}

Snapshot Recorder::snapshot() {
  Snapshot snapshot;
  snapshot.entries.reserve(ring_.size());  // before the lock, which others wait for
  const std::lock_guard lock(mutex_);
  for (const auto& [id, group] : groups_) {
    take_in(*group);
    snapshot.groups.push_back(group->status);
    snapshot.groups.back().last_scheduled = group->collective_count;
  }
  ring_.copy_to(snapshot.entries);
  return snapshot;
}

Recorder& process_recorder() { return base::process_wide<Recorder>(); }

}  // namespace ddp::flight_recorder
