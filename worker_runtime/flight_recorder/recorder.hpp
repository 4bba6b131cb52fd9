// The last operations of this process, of all its groups, in a ring: what they were, and how far each came.
//
// A backend opens each of its groups here, records every call when it is made, and says when its turn has come and when
// it has ended. Recording takes a lock that is held for some tens of nanoseconds, and no allocation.
//
// Threads: any. Fork: a forked child has a recorder of its own, and must not touch its parent's.
#pragma once

#include <cstddef>
#include <mutex>
#include <span>
#include <string>

#include "worker_runtime/flight_recorder/entry.hpp"
#include "worker_runtime/flight_recorder/entry_ring.hpp"
#include "worker_runtime/flight_recorder/recorded_groups.hpp"

namespace ddp::flight_recorder {

constexpr std::size_t kEntriesMax = 4096;

class Recorder {
 public:
  explicit Recorder(std::size_t entries_max = kEntriesMax) : ring_(entries_max) {}

  // Groups opened from here on are of another set of ranks than those before, unless `round` names the same as before.
  // (A group's RoundId does not say that: where no launcher gives one, each group has its own.)
  void begin_round(const std::string& round);

  GroupId open(GroupFacts facts);
  void close(GroupId group);  // its entries stay until the ring goes over them

  // Of an open group, until it is closed. Whoever looks at the recorder sees at once what is said there.
  NewestCompletion& completion_of(GroupId group);

  // Requires that the group is open.
  Ticket record(GroupId group, const Operation& operation);
  // One whose turn has come as it is called.
  Ticket record_started(GroupId group, const Operation& operation, TimePoint at);
  // Several that begin and end as one; the ticket is that of all. Requires at least one.
  Ticket record(GroupId group, std::span<const Operation> coalesced);

  // Times may lie in the past, where a device has measured them. What has ended stays as it is.
  void start(const Ticket& ticket, TimePoint at = now());
  void complete(const Ticket& ticket, TimePoint at = now());
  void fail(const Ticket& ticket, TimePoint at = now());

  // The call never reached the others. If it is the group's last one, the next one gets its numbers.
  void refuse(const Ticket& ticket);

  // Whether some open group has a call that has not completed, be it that the call has failed.
  bool has_incomplete_call();

  Snapshot snapshot();

 private:
  Entry& append(RecordedGroup& group, const Operation& operation, bool is_counted_as_point_to_point, TimePoint at);
  void end(const Ticket& ticket, State state, TimePoint at);
  void take_in(RecordedGroup& group);
  void release_slot(const Entry& overwritten);

  std::mutex mutex_;
  EntryRing ring_;
  RecordedGroups groups_;
};

// The one of this process.
Recorder& process_recorder();

}  // namespace ddp::flight_recorder
