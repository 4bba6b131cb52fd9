// How jobs ended, for nodes that were cut off meanwhile and come back: a membership that begins anew would take up
// their round again, of a job that is over, or begin the job again with a spare that never had one. A job that all
// nodes have left has no verdict, and is begun anew, but not by a round that had been given up.
//
// Pure: the time goes in. Bounded: kept for kKept, and of kCountMax jobs at most, the latest ones.
//
// Threads: one caller at a time (the event loop's thread).
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>

#include "rendezvous/membership/membership.hpp"

namespace ddp::rendezvous {

class FinishedJobs {
 public:
  // Longer than a node that nobody answers runs on and then waits for its job, by the defaults (--orphan-limit, and
  // join_timeout of --rdzv-conf).
  static constexpr std::chrono::minutes kKept{60};
  static constexpr std::size_t kCountMax = 1'000;

  // Takes the place of what is known of an older job of that name; noting it again changes nothing. A job that has
  // begun no round leaves none behind. has_successor: the next job of that name has begun already.
  void note(const std::string& run_id, const JobBefore& job, const std::optional<FinishJob>& verdict,
            bool has_successor, TimePoint now);

  // For the next job of that name: its rounds are to be newer. One that has a verdict leaves no restarts behind.
  JobBefore known_of(const std::string& run_id, TimePoint now) const;
  void has_begun_again(const std::string& run_id);

  // What a node with this hello is told: one that has a round of a job that is over, or an older round; and one that
  // has none, but was welcomed to the job, while none has followed it. Null for any other node.
  const FinishJob* verdict_for(const Hello& hello, TimePoint now);

 private:
  struct Entry {
    std::string run_id;
    JobBefore job;
    std::optional<FinishJob> verdict;
    bool has_successor;
    TimePoint until;
  };

  const Entry* find(const std::string& run_id) const;
  void forget_the_old(TimePoint now);

  std::deque<Entry> entries_;  // in the order of their ends
};

}  // namespace ddp::rendezvous
