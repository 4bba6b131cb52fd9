// Tells the agent of this process that the process leaves its groups, and for whom: how the process ends then is the
// consequence of another rank's failure, or the cause of theirs. Said before any other rank can notice. An NCCL group
// first asks the other ranks which rank has failed; it tells before the program of this rank can notice.
//
// Nobody is told where no agent started this process, or the group is none of the agent's round.
//
// A process without memory for the message goes on without telling.
//
// Threads: any.
#pragma once

#include <string>
#include <vector>

#include "worker_runtime/core/failure/failed_group.hpp"
#include "worker_runtime/core/failure/verdict.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::core {

// The group has failed: calls throw this verdict. `unreached`: its ranks on hosts that gave this host no answer.
void tell_failure(const FailedGroup& group, const Verdict& verdict, const std::vector<int>& unreached = {}) noexcept;

// This rank leaves the group without that: in order, or for an error that is no failure of the group.
void tell_departure(const process_group::GroupMember& who, bool is_own_error, const std::string& why) noexcept;

}  // namespace ddp::core
