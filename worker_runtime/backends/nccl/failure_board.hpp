// Where the ranks of a group tell each other, through the store, that it has failed and how far each of them came.
//
// The first rank that finds a failure reports it; the others hear of that as news of the store (store_news.hpp).
// Everything here is best effort: without the store a rank knows only its own part.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/cut.hpp"
#include "rendezvous/store/client.hpp"
#include "worker_runtime/core/failure/failure.hpp"
#include "worker_runtime/core/failure/rank_progress.hpp"
#include "worker_runtime/core/failure/store_news.hpp"

namespace ddp::nccl_backend {

using core::Failure;
using core::RankProgress;

class FailureBoard {
 public:
  struct Place {
    std::shared_ptr<core::StoreNews> store;
    std::string key_prefix;  // of the group
    int rank = 0;
    int size = 1;
  };

  explicit FailureBoard(Place place) : place_(std::move(place)) {}

  // Waits until another rank reports a failure. Empty once `cut` is cut, or if the store can't be reached.
  std::optional<Failure> listen(base::Cut& cut) const;

  // Reports `own` unless another rank has reported, says how far this rank came, and returns the first report. Within
  // `limit`.
  Failure tell(const Failure& own, const RankProgress& progress, std::chrono::milliseconds limit, base::Cut& cut);

  // After tell(): until all ranks have said how far they came, or `limit` is over.
  void wait_for_answers(std::chrono::milliseconds limit);

  // After tell(): waits for the other ranks to say how far they came, until `limit` at most, and returns what is known
  // by then, by rank; empty if the store can't be reached. `cut` ends it early.
  std::vector<std::optional<RankProgress>> collect(std::chrono::milliseconds limit);

  // Says once that this rank gives the group back, and waits for all others to say so, until `limit` at most: true once
  // all have. It may be called again, to wait for longer.
  bool leave(std::chrono::milliseconds limit, base::Cut& cut);

  const Place& place() const { return place_; }

 private:
  std::string key(const char* name) const { return place_.key_prefix + "failure/" + name; }

  // Adds 1 to the key `count`, and tells `all` when each rank has done so.
  void count(store::Client& store, const char* count, const char* all, store::TimePoint deadline) const;

  Place place_;
  base::Cut* cut_ = nullptr;  // of the last tell()
  bool has_told_ = false;     // tell() has reached the store
  bool is_leaving_ = false;
};

}  // namespace ddp::nccl_backend
