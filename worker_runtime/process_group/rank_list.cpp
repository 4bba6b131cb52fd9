#include "worker_runtime/process_group/rank_list.hpp"

#include <algorithm>

namespace ddp::process_group {

namespace {

constexpr std::size_t kNamedMax = 16;

}  // namespace

std::string list_ranks(const std::vector<int>& ranks) {
  const std::size_t named = ranks.size() <= kNamedMax + 1 ? ranks.size() : kNamedMax;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < named; ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  if (named < ranks.size()) text += " and " + std::to_string(ranks.size() - named) + " more";
  return text;
}

}  // namespace ddp::process_group
