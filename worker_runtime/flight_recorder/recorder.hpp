// The last operations of this process, of all its groups, in a ring: what they were, and how far each came.
//
// A backend opens each of its groups here, records every call when it is made, and says when its turn has come and when
// it has ended. Recording takes a lock that is held for some tens of nanoseconds, and no allocation.
//
// Threads: any. Fork: a forked child has a recorder of its own, and must not touch its parent's.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "ddp/memory.hpp"
#include "ddp/round.hpp"

namespace ddp::flight_recorder {

constexpr std::size_t kEntriesMax = 4096;

// Wall clock, because the ranks of several hosts are compared.
using TimePoint = std::chrono::time_point<std::chrono::system_clock, std::chrono::nanoseconds>;
inline TimePoint now() {
  return std::chrono::time_point_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now());
}

enum class GroupId : std::uint64_t {};  // never reused

struct GroupFacts {
  std::string backend{};      // "cpu", "nccl"
  std::string name{};         // the same on all its ranks, and no other group's of this backend in the round: "group_0"
  std::string description{};  // for a reader: "all ranks"
  std::string track{};        // of the timeline, for its operations; empty: made from backend and name
  std::string library{};      // the version of what communicates, where there is one: "2.28.9"
  RoundId round{};
  std::vector<int> ranks{};  // of the whole job, by the rank in this group
  int rank = 0;              // this process's, in this group
};

// What is asked for. Texts are literals: the ring keeps the pointers.
struct Operation {
  const char* name = "";              // "all_reduce"; "send" and "receive" are counted apart, as point to point
  const char* reduce_op = nullptr;    // "sum"; null where nothing is reduced
  DataType type = DataType::float32;  // of both ranges
  std::uint64_t input_count = 0;      // elements
  std::uint64_t output_count = 0;
  std::uint64_t element_bytes = 0;  // of one; 0 where there are none
  int root = -1;                    // -1: it has none
  int peer = -1;                    // of send and receive, in the group
  std::chrono::milliseconds timeout{0};
};

enum class State : std::uint8_t {
  scheduled,  // called; waits for its turn
  started,
  completed,
  failed,
  refused,  // found its group of no further use before it began: the other ranks never saw it
};

// Names what was recorded by one call. Valid for ever; once the ring has gone over it, saying more of it does nothing.
struct Ticket {
  std::uint64_t record = 0;
  std::uint32_t entry_count = 0;          // one, or those of a coalesced call and its end
  std::uint64_t collective_sequence = 0;  // counts the group's collectives from 1; at a send or receive: those before
  std::uint64_t point_to_point_sequence = 0;
};

struct Entry {
  std::uint64_t record = 0;  // counts from 0, over all groups of the process
  GroupId group{};
  std::uint64_t collective_sequence = 0;
  std::uint64_t point_to_point_sequence = 0;
  std::uint64_t operation_number = 0;  // in the group, from 1; each one of a coalesced call counts
  Operation operation{};
  bool is_point_to_point = false;
  State state = State::scheduled;
  TimePoint created{};  // all three: the epoch where it has not come to that
  TimePoint started{};
  TimePoint ended{};
};

// How far a group has come: sequence numbers of collectives, 0 before the first.
struct GroupStatus {
  GroupId id{};
  GroupFacts facts{};
  bool is_open = true;
  std::uint64_t round_count = 0;            // begin_round() before it was opened: groups of one round can be compared
  std::uint64_t first_record_of_round = 0;  // every operation of its round has this one or a later one
  std::uint64_t last_scheduled = 0;
  std::uint64_t last_started = 0;
  std::uint64_t last_completed = 0;
};

struct Snapshot {
  std::vector<GroupStatus> groups;  // in the order they were opened
  std::vector<Entry> entries;       // in the order of the calls
};

class Recorder {
 public:
  explicit Recorder(std::size_t entries_max = kEntriesMax);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Groups opened from here on are of another set of ranks than those before, unless `round` names the same as before.
  // (A group's RoundId does not say that: where no launcher gives one, each group has its own.)
  void begin_round(const std::string& round);

  GroupId open(GroupFacts facts);
  void close(GroupId group);  // its entries stay until the ring goes over them

  // Where one thread makes and ends all calls of an open group, it may say so of the newest one without the lock,
  // before it records the next. Whoever looks sees it at once.
  class Completion {
   public:
    void say(const Ticket& ticket, TimePoint at) {
      at_.store(at.time_since_epoch().count(), std::memory_order_relaxed);
      said_.store(ticket.record + 1, std::memory_order_release);
    }

   private:
    friend class Recorder;
    std::atomic<std::uint64_t> said_{0};  // 1 + the record; 0 where the recorder has taken it in
    std::atomic<std::int64_t> at_{0};
  };
  Completion& completion_of(GroupId group);  // until it is closed

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

  Snapshot snapshot();

 private:
  struct Group;

  Entry& append(Group& group, const Operation& operation, bool is_counted_as_point_to_point, TimePoint at);
  static void trace_entry(const Group& group, const Entry& entry);
  void end(const Ticket& ticket, State state, TimePoint at);
  static void end(Group& group, Entry& entry, State state, TimePoint at);
  void take_in(Group& group);
  void release_slot(const Entry& overwritten);
  Entry* find(std::uint64_t record);
  Group* find_group(GroupId id);

  std::mutex mutex_;
  std::vector<Entry> ring_;  // record r is at r % size
  std::uint64_t next_record_ = 0;
  std::string round_;
  std::uint64_t round_count_ = 0;
  std::uint64_t first_record_of_round_ = 0;
  std::uint64_t next_group_ = 0;
  std::map<GroupId, std::unique_ptr<Group>> groups_;  // open ones, and those with entries in the ring
};

// The one of this process.
Recorder& process_recorder();

}  // namespace ddp::flight_recorder
