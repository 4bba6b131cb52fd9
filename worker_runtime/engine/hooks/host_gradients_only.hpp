// What the hooks of this library ask of the gradients.
#pragma once

#include <string>
#include <vector>

#include "ddp/communication_hook.hpp"
#include "ddp/error.hpp"

namespace ddp::gradient_engine {

// Throws InvalidArgument unless all gradients are float32. hook: "compressed_all_reduce".
inline void require_float32(const std::vector<GradientBucket>& buckets, const std::string& hook) {
  for (const GradientBucket& bucket : buckets) {
    if (bucket.gradients.type != DataType::float32) {
      throw InvalidArgument(hook + " works on float32, and parameter " + bucket.parameters.front().name + " is " +
                            name_of(bucket.gradients.type) +
                            "\nwhere: the communication hook of a "
                            "DistributedDataParallel\ntry:   parameters of float32, or no hook");
    }
  }
}

// The same; in host memory.
inline void require_float32_on_host(const std::vector<GradientBucket>& buckets, const std::string& hook) {
  for (const GradientBucket& bucket : buckets) {
    if (bucket.gradients.device.kind == Device::Kind::cpu) continue;
    throw InvalidArgument(hook +
                          " works in host memory, and the model is on a GPU\nwhere: the communication hook of a "
                          "DistributedDataParallel\ntry:   no hook, compressed_all_reduce, or one of your own");
  }
  require_float32(buckets, hook);
}

}  // namespace ddp::gradient_engine
