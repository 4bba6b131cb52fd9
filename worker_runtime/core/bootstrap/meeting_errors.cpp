#include "worker_runtime/core/bootstrap/meeting_errors.hpp"

#include "ddp/error.hpp"
#include "worker_runtime/core/bootstrap/meeting_verdict.hpp"
#include "worker_runtime/process_group/rank_list.hpp"

namespace ddp::core {

using process_group::GroupMember;
using process_group::list_ranks;

void throw_two_of(const GroupMember& who, int rank, const std::string& processes) {
  throw InvalidArgument("two processes say that they are rank " + std::to_string(rank) + processes + where(who) +
                        "\ntry:   give every process a RANK of its own");
}

void throw_lost(const GroupMember& who, const std::vector<int>& lost) {
  throw RankFailure(list_ranks(lost) + " ended before all ranks had met" + where(who) +
                        "\ntry:   look at the end of the output of " + list_ranks(lost),
                    lost);
}

void throw_rank0_lost(const GroupMember& who, const MeetingPlace& place) {
  if (const auto verdict = read_verdict(place)) throw_verdict(*verdict);
  throw RankFailure("rank 0, which coordinates the start of the group, broke off" + where(who) +
                        "\ntry:   look at the end of the output of rank 0",
                    {0});
}

}  // namespace ddp::core
