#include "worker_runtime/process_group/local_ranks.hpp"

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <vector>

#include "ddp/error.hpp"
#include "worker_runtime/process_group/long_wait.hpp"
#include "worker_runtime/process_group/rank_list.hpp"

namespace ddp::process_group {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLookedForMax = 1024;               // ranks, to name those that are missing
constexpr std::chrono::seconds kLookingLimit{5};  // beyond the deadline

std::vector<int> ranks_in(const std::string& text) {
  std::vector<int> ranks;
  std::istringstream in(text);
  for (int rank = 0; in >> rank; in.ignore(1)) ranks.push_back(rank);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::vector<int> missing_ranks(int size, store::Client& store, const std::string& key_prefix) {
  std::vector<int> missing;
  const auto until = Clock::now() + kLookingLimit;
  for (int rank = 0; rank < std::min(size, kLookedForMax); ++rank)
    if (!store.check({key_prefix + "came/" + std::to_string(rank)}, until)) missing.push_back(rank);
  return missing;
}

}  // namespace

LocalRanks find_local_ranks(int rank, int size, const std::string& host, store::Client& store,
                            const std::string& key_prefix, const io::Deadline& deadline) {
  const std::string all = key_prefix + "all_came", on_host = key_prefix + "on/" + host;
  store.append(on_host, std::to_string(rank) + ",", deadline.end());
  store.set(key_prefix + "came/" + std::to_string(rank), "", deadline.end());
  if (store.add(key_prefix + "came", 1, deadline.end()) == size) store.set(all, "", deadline.end());
  try {
    LongWait wait(rank, size, deadline);
    try {
      store.wait({all}, wait.first_end());
    } catch (const TimeoutError&) {
      if (wait.is_over()) throw;
      const auto missing = missing_ranks(size, store, key_prefix);
      wait.tell(missing.empty() ? "the other ranks" : list_ranks(missing));
      store.wait({all}, deadline.end());
    }
  } catch (const TimeoutError&) {
    const auto missing = missing_ranks(size, store, key_prefix);
    throw TimeoutError((missing.empty() ? "some ranks" : list_ranks(missing)) + " did not come within " +
                           std::to_string(deadline.full_time().count()) + " ms\nwhere: rank " + std::to_string(rank) +
                           " of " + std::to_string(size) +
                           "\ntry:   look at their output; all of them must be started with the same WORLD_SIZE",
                       missing);
  }
  const auto ranks = ranks_in(store.get(on_host, deadline.end()));
  const auto own = std::find(ranks.begin(), ranks.end(), rank);
  return {static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size())};
}

}  // namespace ddp::process_group
