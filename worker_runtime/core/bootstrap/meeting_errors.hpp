// Why a coordinator ends a meeting (meeting.hpp), as the error of each reason.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "worker_runtime/core/bootstrap/meeting.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::core {

// The deadline has passed, or a follower says that its own has. The coordinator knows which ranks it waits for, and
// reports them by throw_did_not_join().
class MeetingTimedOut : public std::exception {
 public:
  const char* what() const noexcept override { return "the ranks did not meet in time"; }
};

// `processes` says which ones they are, ": pids 3 and 4"; empty if that is not known.
[[noreturn]] void throw_two_of(const process_group::GroupMember& who, int rank, const std::string& processes);

[[noreturn]] void throw_lost(const process_group::GroupMember& who, const std::vector<int>& lost);

// Rank 0's own reason goes first, if it published one.
[[noreturn]] void throw_rank0_lost(const process_group::GroupMember& who, const MeetingPlace& place);

}  // namespace ddp::core
