#include "worker_runtime/engine/plan/bucket_queue.hpp"

namespace ddp::gradient_engine {

void BucketQueue::set_buckets(const std::vector<std::vector<std::size_t>>& buckets) {
  awaited_in_step_.clear();
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

}  // namespace ddp::gradient_engine
