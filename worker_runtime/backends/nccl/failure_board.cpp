#include "worker_runtime/backends/nccl/failure_board.hpp"

#include <utility>

#include "worker_runtime/process_group/deadline_after.hpp"

namespace ddp::nccl_backend {

namespace {

constexpr std::chrono::seconds kReadLimit{5};  // for a report that is there
constexpr std::chrono::seconds kSayLimit{1};   // to say that this rank leaves

}  // namespace

std::optional<Failure> FailureBoard::listen(base::Cut& cut) const {
  if (!place_.store->wait_for(key("report"), process_group::kTimeoutMax, cut)) return std::nullopt;
  std::optional<Failure> failure;
  place_.store->ask(kReadLimit, cut, [&](store::Client& store, store::TimePoint deadline) {
    failure = core::decode_failure(store.get(key("report"), deadline), place_.size);
  });
  return failure;
}

void FailureBoard::count(store::Client& store, const char* count, const char* all, store::TimePoint deadline) const {
  if (store.add(key(count), 1, deadline) >= place_.size) place_.store->tell(store, key(all), deadline);
}

Failure FailureBoard::tell(const Failure& own, const RankProgress& progress, std::chrono::milliseconds limit,
                           base::Cut& cut) {
  Failure first = own;
  cut_ = &cut;
  has_told_ = place_.store->ask(limit, cut, [&](store::Client& store, store::TimePoint deadline) {
    const std::string report = store.compare_set(key("report"), "", encode(own), deadline);
    first = core::decode_failure(report, place_.size).value_or(own);
    place_.store->tell(store, key("report"), deadline);
    store.append(key("progress"), encode(place_.rank, progress), deadline);
    count(store, "answers", "all", deadline);
  });
  return first;
}

bool FailureBoard::leave(std::chrono::milliseconds limit, base::Cut& cut) {
  if (!std::exchange(is_leaving_, true)) {
    place_.store->ask(kSayLimit, cut, [&](store::Client& store, store::TimePoint deadline) {
      count(store, "leaving", "all_leave", deadline);
    });
  }
  return place_.store->wait_for(key("all_leave"), limit, cut);
}

void FailureBoard::wait_for_answers(std::chrono::milliseconds limit) {
  if (has_told_) place_.store->wait_for(key("all"), limit, *cut_);
}

std::vector<std::optional<RankProgress>> FailureBoard::collect(std::chrono::milliseconds limit) {
  wait_for_answers(limit);
  if (!has_told_) return {};
  std::vector<std::optional<RankProgress>> all;
  place_.store->ask(limit, *cut_, [&](store::Client& store, store::TimePoint deadline) {
    all = core::decode_progress(store.get(key("progress"), deadline), place_.size);
  });
  return all;
}

}  // namespace ddp::nccl_backend
