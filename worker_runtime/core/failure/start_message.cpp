#include "worker_runtime/core/failure/start_message.hpp"

#include "worker_runtime/process_group/rank_list.hpp"

namespace ddp::core {

std::string where_starting(const StartingRank& own) {
  return "\nwhere: starting a process group of the backend " + own.backend + ", rank " + std::to_string(own.rank) +
         " of " + std::to_string(own.size) + ", pid " + std::to_string(own.pid);
}

std::string did_not_join_message(const StartingRank& own, const std::vector<int>& missing,
                                 std::chrono::milliseconds limit) {
  const std::string within = " within " + std::to_string(limit.count()) + " ms";
  const std::string group = "the process group of " + std::to_string(own.size) + " ranks";
  const std::string text =
      missing.empty() ? group + " did not start" : process_group::list_ranks(missing) + " did not join " + group;
  return text + within + where_starting(own) + "\ntry:   look at the output of " +
         (missing.empty() ? "every rank" : "the missing ranks") +
         "; a longer InitOptions::timeout helps where they only start late";
}

}  // namespace ddp::core
