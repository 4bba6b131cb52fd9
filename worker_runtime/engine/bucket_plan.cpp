#include "worker_runtime/engine/bucket_plan.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace ddp::gradient_engine {
namespace {

// The bucket of one data type that is being filled.
struct OpenBucket {
  std::vector<std::size_t> parameters;
  std::size_t gradient_bytes = 0;
  std::size_t cap_bytes = 0;
};

std::size_t aligned(std::size_t bytes) {
  return (bytes + kGradientAlignmentBytes - 1) / kGradientAlignmentBytes * kGradientAlignmentBytes;
}

// Rules 1 to 4: which parameters share a bucket.
std::vector<std::vector<std::size_t>> divide(const std::vector<GradientSize>& gradients, BucketCaps caps) {
  std::vector<std::vector<std::size_t>> closed;
  std::map<DataType, OpenBucket> open;
  for (std::size_t parameter = gradients.size(); parameter-- > 0;) {
    const GradientSize& gradient = gradients[parameter];
    OpenBucket& bucket = open.try_emplace(gradient.type, OpenBucket{{}, 0, caps.first_bytes}).first->second;
    bucket.parameters.push_back(parameter);
    bucket.gradient_bytes += gradient.count * size_of(gradient.type);
    if (bucket.gradient_bytes < bucket.cap_bytes) continue;
    closed.push_back(std::exchange(bucket, OpenBucket{{}, 0, caps.bytes}).parameters);
  }
  for (auto& [type, bucket] : open) {
    if (!bucket.parameters.empty()) closed.push_back(std::move(bucket.parameters));
  }
  std::sort(closed.begin(), closed.end(), [](const auto& a, const auto& b) { return a.back() > b.back(); });
  return closed;
}

}  // namespace

BucketPlan plan_buckets(const std::vector<GradientSize>& gradients, BucketCaps caps) {
  BucketPlan plan;
  plan.slots.resize(gradients.size());
  for (std::vector<std::size_t>& parameters : divide(gradients, caps)) {
    const DataType type = gradients[parameters.front()].type;
    std::size_t end_bytes = 0;
    for (const std::size_t parameter : parameters) {
      const std::size_t offset_bytes = aligned(end_bytes);
      plan.slots[parameter] = {.bucket = plan.buckets.size(), .offset_bytes = offset_bytes};
      end_bytes = offset_bytes + gradients[parameter].count * size_of(type);
    }
    plan.buckets.push_back({type, std::move(parameters), end_bytes / size_of(type) + 1});
  }
  return plan;
}

}  // namespace ddp::gradient_engine
