// What went wrong in a collective, in words. Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "worker_runtime/core/failure/fingerprint.hpp"
#include "worker_runtime/core/failure/rank_state.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::core {

// The call that failed, and who made it.
struct FailedCall {
  process_group::Membership who;
  int pid = 0;
  std::uint64_t number = 0;  // of the call; the first is 1, and 0 stands for the start of the group
  Fingerprint call;
};

std::string lost_message(const FailedCall& failed, const std::vector<RankState>& lost);
std::string timeout_message(const FailedCall& failed, const std::vector<RankState>& missing,
                            std::chrono::milliseconds waited);
// Of a send or receive, whose number is that of the message, and of all that were under way with it: where the peers
// did not come to them, or not to their ends.
std::string pair_timeout_message(const FailedCall& failed, const std::vector<RankState>& peers, bool has_met,
                                 std::chrono::milliseconds waited);
std::string mismatch_message(const FailedCall& failed, const std::string& difference);
std::string no_memory_message(const FailedCall& failed, std::size_t bytes, int rank, int error_number);

}  // namespace ddp::core
