#include "worker_runtime/engine/layout/layout.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace ddp::gradient_engine {
namespace {

// A bucket's parameters, and where the last of them is in the order.
struct Members {
  std::vector<std::size_t> parameters;
  std::size_t complete_at = 0;
};

// The bucket of one data type that is being filled.
struct OpenBucket {
  Members members;
  std::size_t gradient_bytes = 0;
  std::size_t cap_bytes = 0;
};

std::size_t rounded_up(std::size_t bytes, std::size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

// Rules 1 to 4: which parameters share a bucket.
std::vector<Members> divide(const std::vector<GradientSize>& gradients, const std::vector<std::size_t>& order,
                            BucketCaps caps) {
  std::vector<Members> closed;
  std::map<DataType, OpenBucket> open;
  for (std::size_t at = 0; at < order.size(); ++at) {
    const GradientSize& gradient = gradients[order[at]];
    OpenBucket& bucket = open.try_emplace(gradient.type, OpenBucket{{}, 0, caps.first_bytes}).first->second;
    bucket.members.parameters.push_back(order[at]);
    bucket.members.complete_at = at;
    bucket.gradient_bytes += gradient.count * size_of(gradient.type);
    if (bucket.gradient_bytes < bucket.cap_bytes) continue;
    closed.push_back(std::exchange(bucket, OpenBucket{{}, 0, caps.bytes}).members);
  }
  for (auto& [type, bucket] : open) {
    if (!bucket.members.parameters.empty()) closed.push_back(std::move(bucket.members));
  }
  std::sort(closed.begin(), closed.end(),
            [](const Members& a, const Members& b) { return a.complete_at < b.complete_at; });
  return closed;
}

}  // namespace

Layout lay_out(const std::vector<GradientSize>& gradients, const std::vector<std::size_t>& order, BucketCaps caps,
               std::size_t flags_bytes, std::size_t rank_count) {
  Layout layout;
  layout.slots.resize(gradients.size());
  const std::size_t multiple = kGradientAlignmentBytes * rank_count;
  for (Members& members : divide(gradients, order, caps)) {
    const DataType type = gradients[members.parameters.front()].type;
    std::size_t end_bytes = 0;
    for (const std::size_t parameter : members.parameters) {
      const std::size_t offset_bytes = rounded_up(end_bytes, kGradientAlignmentBytes);
      layout.slots[parameter] = {.bucket = layout.buckets.size(), .offset_bytes = offset_bytes};
      end_bytes = offset_bytes + gradients[parameter].count * size_of(type);
    }
    const std::size_t padded_bytes = rounded_up(end_bytes, multiple);
    layout.buckets.push_back({.type = type,
                              .parameters = std::move(members.parameters),
                              .count = end_bytes / size_of(type),
                              .padded_count = padded_bytes / size_of(type),
                              .offset_bytes = layout.bytes});
    layout.bytes += padded_bytes;
  }
  layout.flags_offset = layout.bytes;
  layout.bytes += rounded_up(flags_bytes, kGradientAlignmentBytes);
  return layout;
}

std::string describe(const Layout& layout, const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
    const Bucket& bucket = layout.buckets[b];
    text += "bucket " + std::to_string(b) + ": " + name_of(bucket.type) + ", " +
            std::to_string(bucket.count * size_of(bucket.type)) + " bytes";
    const char* separator = ": ";
    for (const std::size_t parameter : bucket.parameters) {
      text += separator + names[parameter];
      separator = ", ";
    }
    text += "\n";
  }
  return text;
}

std::vector<std::size_t> reverse_order(std::size_t parameter_count) {
  std::vector<std::size_t> order(parameter_count);
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  return order;
}

Shard shard_of(const Bucket& bucket, std::size_t rank, std::size_t rank_count) {
  const std::size_t count = bucket.padded_count / rank_count;
  return {.first = rank * count, .count = count};
}

}  // namespace ddp::gradient_engine
