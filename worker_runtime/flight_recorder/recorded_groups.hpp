// The groups of this process that the flight recorder keeps: open ones, and those with entries in the ring.
//
// Threads: one caller at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "worker_runtime/flight_recorder/recorded_group.hpp"

namespace ddp::flight_recorder {

class RecordedGroups {
 public:
  // Does nothing if the round has begun already. `next_record`: the first that the round can have.
  void begin_round(const std::string& round, std::uint64_t next_record) {
    if (round == round_) return;
    round_ = round;
    ++round_count_;
    first_record_of_round_ = next_record;
  }

  // Into the present round.
  GroupId add(std::unique_ptr<RecordedGroup> group) {
    const GroupId id{next_group_++};
    group->status.id = id;
    group->status.round_count = round_count_;
    group->status.first_record_of_round = first_record_of_round_;
    groups_.emplace(id, std::move(group));
    return id;
  }

  // Null once it is gone.
  RecordedGroup* find(GroupId id) {
    const auto found = groups_.find(id);
    return found == groups_.end() ? nullptr : found->second.get();
  }

  // A group goes once it is closed and has no entries.
  void remove_if_done(const RecordedGroup& group) {
    if (group.entry_count == 0 && !group.status.is_open) groups_.erase(GroupId(group.status.id));
  }

  auto begin() const { return groups_.begin(); }  // in the order in which they were added
  auto end() const { return groups_.end(); }

 private:
  std::string round_;
  std::uint64_t round_count_ = 0;
  std::uint64_t first_record_of_round_ = 0;
  std::uint64_t next_group_ = 0;
  std::map<GroupId, std::unique_ptr<RecordedGroup>> groups_;
};

}  // namespace ddp::flight_recorder
