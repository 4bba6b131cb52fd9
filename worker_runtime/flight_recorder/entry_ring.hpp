// The entries of the newest records, in a ring: each new record goes over the oldest one.
//
// Threads: one caller at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker_runtime/flight_recorder/entry.hpp"

namespace ddp::flight_recorder {

class EntryRing {
 public:
  explicit EntryRing(std::size_t entries_max) : entries_(entries_max) {}

  std::size_t size() const { return entries_.size(); }
  bool is_full() const { return next_record_ >= entries_.size(); }

  // Null once the ring has gone over it.
  Entry* find(std::uint64_t record) {
    Entry& entry = entries_[record % entries_.size()];
    return record < next_record_ && entry.record == record ? &entry : nullptr;
  }

  std::uint64_t next_record() const { return next_record_; }
  // Where the next record goes; of a full ring the oldest entry. Once that is written, count_record() says so.
  Entry& next_entry() { return entries_[next_record_ % entries_.size()]; }
  void count_record() { ++next_record_; }

  template <class Condition>
  bool any_of(const Condition& condition) const {
    return std::any_of(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(count()), condition);
  }

  // Appends all entries, the oldest first.
  void copy_to(std::vector<Entry>& out) const {
    for (std::uint64_t record = next_record_ - count(); record < next_record_; ++record) {
      out.push_back(entries_[record % entries_.size()]);
    }
  }

 private:
  std::uint64_t count() const { return std::min<std::uint64_t>(next_record_, entries_.size()); }

  std::vector<Entry> entries_;  // record r is at r % size
  std::uint64_t next_record_ = 0;
};

}  // namespace ddp::flight_recorder
