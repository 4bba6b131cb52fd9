// What the flight recorder (recorder.hpp) is told of an operation, and what it keeps.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "ddp/memory.hpp"
#include "ddp/round.hpp"

namespace ddp::flight_recorder {

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

}  // namespace ddp::flight_recorder
