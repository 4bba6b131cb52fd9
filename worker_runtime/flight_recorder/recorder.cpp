#include "worker_runtime/flight_recorder/recorder.hpp"

#include <algorithm>
#include <utility>

#include "base/process_wide.hpp"
#include "worker_runtime/trace/tracer.hpp"

namespace ddp::flight_recorder {

namespace {

constexpr Operation kEndOfCoalesced{.name = "coalesced"};  // PyTorch's analyser knows a coalesced call by it

bool is_point_to_point(const Operation& operation) { return operation.peer >= 0; }

bool has_ended(State state) { return state != State::scheduled && state != State::started; }

std::string track_of(const GroupFacts& facts) {
  return facts.track.empty() ? facts.backend + " " + facts.name : facts.track;
}

}  // namespace

struct Recorder::Group {
  GroupStatus status;
  std::string track;                       // of the timeline
  std::uint64_t collective_count = 0;      // of calls
  std::uint64_t point_to_point_count = 0;  // of calls
  std::uint64_t operation_count = 0;
  std::size_t entry_count = 0;  // of them in the ring
  Completion completion;
};

Recorder::Recorder(std::size_t entries_max) : ring_(entries_max) {}
Recorder::~Recorder() = default;

void Recorder::begin_round(const std::string& round) {
  const std::lock_guard lock(mutex_);
  if (round == round_) return;
  round_ = round;
  ++round_count_;
  first_record_of_round_ = next_record_;
}

GroupId Recorder::open(GroupFacts facts) {
  auto group = std::make_unique<Group>();
  group->track = track_of(facts);
  group->status.facts = std::move(facts);
  const std::lock_guard lock(mutex_);
  const GroupId id{next_group_++};
  group->status.id = id;
  group->status.round_count = round_count_;
  group->status.first_record_of_round = first_record_of_round_;
  groups_.emplace(id, std::move(group));
  return id;
}

void Recorder::close(GroupId id) {
  const std::lock_guard lock(mutex_);
  Group* const group = find_group(id);
  if (group == nullptr) return;
  take_in(*group);
  group->status.is_open = false;
  if (group->entry_count == 0) groups_.erase(id);
}

Recorder::Completion& Recorder::completion_of(GroupId id) {
  const std::lock_guard lock(mutex_);
  return find_group(id)->completion;
}

// With the lock held.
void Recorder::take_in(Group& group) {
  const std::uint64_t said = group.completion.said_.load(std::memory_order_acquire);
  if (said == 0) return;
  const TimePoint at{TimePoint::duration(group.completion.at_.load(std::memory_order_relaxed))};
  group.completion.said_.store(0, std::memory_order_relaxed);
  if (Entry* const entry = find(said - 1)) end(group, *entry, State::completed, at);  // no trace: there was none then
}

Ticket Recorder::record(GroupId group, const Operation& operation) {
  return record(group, std::span<const Operation>(&operation, 1));
}

Ticket Recorder::record_started(GroupId id, const Operation& operation, TimePoint at) {
  const std::lock_guard lock(mutex_);
  Group& group = *find_group(id);
  take_in(group);
  const bool is_apart = is_point_to_point(operation);
  ++(is_apart ? group.point_to_point_count : group.collective_count);
  Entry& entry = append(group, operation, is_apart, at);
  entry.state = State::started;
  entry.started = at;
  if (!is_apart) group.status.last_started = group.collective_count;
  return {entry.record, 1, group.collective_count, group.point_to_point_count};
}

Ticket Recorder::record(GroupId id, std::span<const Operation> coalesced) {
  const TimePoint at = now();
  const std::lock_guard lock(mutex_);
  Group& group = *find_group(id);
  take_in(group);
  const bool is_all_point_to_point = std::all_of(coalesced.begin(), coalesced.end(), is_point_to_point);
  ++(is_all_point_to_point ? group.point_to_point_count : group.collective_count);
  const Ticket ticket{next_record_, static_cast<std::uint32_t>(coalesced.size() + (coalesced.size() > 1 ? 1 : 0)),
                      group.collective_count, group.point_to_point_count};
  for (const Operation& operation : coalesced) append(group, operation, is_all_point_to_point, at);
  if (coalesced.size() > 1) append(group, kEndOfCoalesced, is_all_point_to_point, at);
  return ticket;
}

Entry& Recorder::append(Group& group, const Operation& operation, bool is_counted_as_point_to_point, TimePoint at) {
  Entry& entry = ring_[next_record_ % ring_.size()];
  if (next_record_ >= ring_.size() && entry.group == group.status.id) {
    --group.entry_count;
  } else if (next_record_ >= ring_.size()) {
    release_slot(entry);
  }
  entry = {.record = next_record_++,
           .group = group.status.id,
           .collective_sequence = group.collective_count,
           .point_to_point_sequence = group.point_to_point_count,
           .operation_number = ++group.operation_count,
           .operation = operation,
           .is_point_to_point = is_counted_as_point_to_point,
           .created = at};
  ++group.entry_count;
  return entry;
}

void Recorder::release_slot(const Entry& overwritten) {
  Group* const group = find_group(overwritten.group);
  if (group == nullptr) return;
  take_in(*group);  // what has been said of it, as long as it is there
  --group->entry_count;
  if (group->entry_count == 0 && !group->status.is_open) groups_.erase(overwritten.group);
}

void Recorder::start(const Ticket& ticket, TimePoint at) {
  const std::lock_guard lock(mutex_);
  for (std::uint64_t record = ticket.record; record < ticket.record + ticket.entry_count; ++record) {
    Entry* const entry = find(record);
    if (entry == nullptr || entry->state != State::scheduled) continue;
    entry->state = State::started;
    entry->started = at;
    GroupStatus& status = find_group(entry->group)->status;
    if (!entry->is_point_to_point) status.last_started = std::max(status.last_started, entry->collective_sequence);
  }
}

void Recorder::complete(const Ticket& ticket, TimePoint at) { end(ticket, State::completed, at); }
void Recorder::fail(const Ticket& ticket, TimePoint at) { end(ticket, State::failed, at); }

void Recorder::end(const Ticket& ticket, State state, TimePoint at) {
  const std::lock_guard lock(mutex_);
  for (std::uint64_t record = ticket.record; record < ticket.record + ticket.entry_count; ++record) {
    Entry* const entry = find(record);
    if (entry == nullptr || has_ended(entry->state)) continue;
    Group& group = *find_group(entry->group);
    end(group, *entry, state, at);
    if (trace::is_on() && entry->started != TimePoint{}) trace_entry(group, *entry);
  }
}

// With the lock held.
void Recorder::end(Group& group, Entry& entry, State state, TimePoint at) {
  if (has_ended(entry.state)) return;
  entry.ended = at;
  if (entry.started == TimePoint{} && state == State::completed) entry.started = at;  // seen only now
  entry.state = state;
  if (!entry.is_point_to_point && state == State::completed) {
    group.status.last_started = std::max(group.status.last_started, entry.collective_sequence);
    group.status.last_completed = std::max(group.status.last_completed, entry.collective_sequence);
  }
}

void Recorder::trace_entry(const Group& group, const Entry& entry) {
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

void Recorder::refuse(const Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  Group* group = nullptr;
  std::uint64_t last_operation = 0;
  bool is_counted_as_point_to_point = false;
  for (std::uint64_t record = ticket.record; record < ticket.record + ticket.entry_count; ++record) {
    Entry* const entry = find(record);
    if (entry == nullptr || has_ended(entry->state)) return;
    entry->state = State::refused;
    group = find_group(entry->group);
    last_operation = entry->operation_number;
    is_counted_as_point_to_point = entry->is_point_to_point;
  }
  if (group == nullptr || group->operation_count != last_operation) return;
  group->operation_count -= ticket.entry_count;
  --(is_counted_as_point_to_point ? group->point_to_point_count : group->collective_count);
  GroupStatus& status = group->status;
  status.last_started = std::min(status.last_started, group->collective_count);
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
  const std::uint64_t first = next_record_ - std::min<std::uint64_t>(next_record_, ring_.size());
  for (std::uint64_t record = first; record < next_record_; ++record) {
    snapshot.entries.push_back(ring_[record % ring_.size()]);
  }
  return snapshot;
}

// Null where the ring has gone over it.
Entry* Recorder::find(std::uint64_t record) {
  Entry& entry = ring_[record % ring_.size()];
  return record < next_record_ && entry.record == record ? &entry : nullptr;
}

Recorder::Group* Recorder::find_group(GroupId id) {
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : found->second.get();
}

Recorder& process_recorder() { return base::process_wide<Recorder>(); }

}  // namespace ddp::flight_recorder
