// The sentences of a process group that does not start, the same for all backends. Pure.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace ddp::core {

struct StartingRank {
  std::string backend{};
  int rank = 0;
  int size = 1;
  int pid = 0;
};

// "\nwhere: ..."
std::string where_starting(const StartingRank& own);

// missing: empty if it is not known which ranks did not join.
std::string did_not_join_message(const StartingRank& own, const std::vector<int>& missing,
                                 std::chrono::milliseconds limit);

}  // namespace ddp::core
