#include "ddp/gradient_scaling.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "ddp/error.hpp"
#include "worker_runtime/engine/handle.hpp"
#include "worker_runtime/engine/host_gradients.hpp"

namespace ddp {

using namespace gradient_engine;

namespace {

// A range for each bucket.
std::vector<MemoryRange> host_gradients_of(DistributedDataParallel& model, const char* call) {
  std::vector<MemoryRange> buckets = model.bucket_memory();
  if (buckets.front().device.kind != Device::Kind::cpu) {
    throw InvalidArgument(std::string("the gradients are on a GPU\nwhere: ") + call +
                          "\ntry:   a kernel of your own on DistributedDataParallel::bucket_memory()");
  }
  return buckets;
}

void require_above_0(double value, const char* name, const char* call) {
  if (value > 0) return;
  throw InvalidArgument(std::string(name) + " = " + std::to_string(value) + "\nwhere: " + call +
                        "\ntry:   a number above 0");
}

double norm_of(const std::vector<MemoryRange>& buckets) {
  double squares = 0;
  for (const MemoryRange& bucket : buckets) squares += sum_of_squares(bucket);
  return std::sqrt(squares);
}

}  // namespace

double DDP_ABI::gradient_norm(DistributedDataParallel& model) {
  return norm_of(host_gradients_of(model, "gradient_norm"));
}

double DDP_ABI::clip_gradients_by_norm(DistributedDataParallel& model, double norm_max) {
  require_above_0(norm_max, "norm_max", "clip_gradients_by_norm");
  const std::vector<MemoryRange> buckets = host_gradients_of(model, "clip_gradients_by_norm");
  const double norm = norm_of(buckets);
  if (!(norm > norm_max) || std::isinf(norm)) return norm;
  for (const MemoryRange& bucket : buckets) gradient_engine::scale(bucket, norm_max / norm);
  return norm;
}

void DDP_ABI::clip_gradients_by_value(DistributedDataParallel& model, double value_max) {
  require_above_0(value_max, "value_max", "clip_gradients_by_value");
  for (const MemoryRange& bucket : host_gradients_of(model, "clip_gradients_by_value")) clamp(bucket, value_max);
}

class LossScaler::Impl {
 public:
  Impl(ProcessGroup group, LossScalerOptions options)
      : group_(std::move(group)), options_(options), scale_(options.scale) {}

  double scale() const { return scale_; }

  bool unscale(DistributedDataParallel& model) {
    const std::vector<MemoryRange> buckets = host_gradients_of(model, "LossScaler::unscale");
    std::int32_t is_bad = 0;
    for (const MemoryRange& bucket : buckets) is_bad = is_bad != 0 || !is_finite(bucket) ? 1 : 0;
    group_.all_reduce(MemoryRange(&is_bad, 1, DataType::int32), ReduceOp::max, options_.collective);
    if (is_bad == 0) {
      for (const MemoryRange& bucket : buckets) gradient_engine::scale(bucket, 1 / scale_);
    }
    adapt(is_bad == 0);
    return is_bad == 0;
  }

  bool unscale(ShardedOptimizer& optimizer) {
    const bool is_good = optimizer.unscale_gradients(scale_);
    adapt(is_good);
    return is_good;
  }

  std::vector<Parameter> state() {
    return {{"loss_scaler.scale", {}, MemoryRange(&scale_, 1, DataType::float64)},
            {"loss_scaler.good_steps", {}, MemoryRange(&good_steps_, 1, DataType::int64)}};
  }

 private:
  // Scales that a float32 holds, and whose inverse it holds.
  static constexpr double kSmallest = 0x1p-100, kLargest = 0x1p100;

  void adapt(bool is_good) {
    if (!is_good) {
      scale_ = std::max(scale_ * options_.backoff, kSmallest);
      good_steps_ = 0;
    } else if (static_cast<std::uint64_t>(++good_steps_) >= options_.growth_interval) {
      scale_ = std::min(scale_ * options_.growth, kLargest);
      good_steps_ = 0;
    }
  }

  ProcessGroup group_;
  LossScalerOptions options_;
  double scale_;
  std::int64_t good_steps_ = 0;  // since the scale changed last
};

LossScaler::LossScaler(ProcessGroup group, LossScalerOptions options) {
  if (group.impl() == nullptr) {
    throw InvalidArgument("an empty group\nwhere: LossScaler\ntry:   the group of the model");
  }
  require_above_0(options.scale, "scale", "LossScaler");
  const bool is_in_range = std::isfinite(options.scale * options.growth) && options.growth > 1 && options.backoff > 0 &&
                           options.backoff < 1 && options.growth_interval > 0;
  if (!is_in_range) {
    throw InvalidArgument("growth = " + std::to_string(options.growth) +
                          ", backoff = " + std::to_string(options.backoff) +
                          ", growth_interval = " + std::to_string(options.growth_interval) +
                          "\nwhere: LossScaler\ntry:   scale and growth finite, growth above 1, backoff between 0 and "
                          "1, growth_interval above 0");
  }
  impl_ = std::make_shared<Impl>(std::move(group), options);
}

double LossScaler::scale() const { return gradient_engine::require_impl(impl_, "LossScaler").scale(); }
bool LossScaler::unscale(DistributedDataParallel& model) {
  return gradient_engine::require_impl(impl_, "LossScaler").unscale(model);
}
bool LossScaler::unscale(ShardedOptimizer& optimizer) {
  return gradient_engine::require_impl(impl_, "LossScaler").unscale(optimizer);
}
std::vector<Parameter> LossScaler::state() { return gradient_engine::require_impl(impl_, "LossScaler").state(); }

}  // namespace ddp
