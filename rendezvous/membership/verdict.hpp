// How a job ends, as its nodes are told.
//
// Pure.
#pragma once

#include <optional>
#include <string>

#include "rendezvous/membership/current_round.hpp"
#include "rendezvous/membership/messages.hpp"
#include "rendezvous/membership/options.hpp"
#include "rendezvous/membership/reasons.hpp"

namespace ddp::rendezvous {

// All workers have ended by themselves, some of them (CurrentRound::stopped_at_step) perhaps because they were told at
// which step to, by this membership or by one before it.
bool has_stopped_at_step(const CurrentRound& round);

// No round follows the last one.
struct VerdictFacts {
  const CurrentRound& round;  // the last one
  const std::optional<JobStop>& stop;
  bool is_another_due = false;  // round, but for the stop; without a stop the crash loop is in its way
  int world_size = 1, restarts_max = 0;
};
FinishJob verdict_of_round(const VerdictFacts& facts);

// Too few nodes have come for a round. names: of those that are here; reason: why the round before has ended.
FinishJob verdict_of_wait(const MembershipOptions& options, int count, const std::string& names,
                          const std::optional<std::string>& reason);

// The nodes here are enough, but others may go on without them, and did not come back.
FinishJob verdict_of_split(const MembershipOptions& options, const std::string& why_too_few);

// The job is stopped while no round is at work, or only a spare leaves the job.
FinishJob verdict_of_stop(const JobStop& stop, int restarts_max);

}  // namespace ddp::rendezvous
