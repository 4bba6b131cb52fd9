#include "worker_runtime/engine/plan/bucket_queue.hpp"

#include <algorithm>
#include <utility>

namespace ddp::gradient_engine {

void BucketQueue::set_buckets(const std::vector<std::vector<std::size_t>>& buckets) {
  awaited_in_step_.clear();
  is_idle_.clear();
  for (const std::vector<std::size_t>& parameters : buckets) {
    for (const std::size_t parameter : parameters) bucket_of_[parameter] = awaited_in_step_.size();
    awaited_in_step_.push_back(parameters.size());
  }
}

void BucketQueue::await_only(const std::vector<bool>& is_awaited) {
  awaited_in_step_.assign(awaited_in_step_.size(), 0);
  for (std::size_t parameter = 0; parameter < bucket_of_.size(); ++parameter) {
    if (is_awaited[parameter]) ++awaited_in_step_[bucket_of_[parameter]];
  }
}

void BucketQueue::leave_out(const std::vector<bool>& is_idle) {
  std::vector<std::uint8_t> idle(awaited_in_step_.size(), 1);
  for (std::size_t parameter = 0; parameter < bucket_of_.size(); ++parameter) {
    if (!is_idle[parameter]) idle[bucket_of_[parameter]] = 0;
  }
  const bool is_any = std::count(idle.begin(), idle.end(), 1) > 0;
  is_idle_ = is_any ? std::move(idle) : std::vector<std::uint8_t>{};
}

}  // namespace ddp::gradient_engine
