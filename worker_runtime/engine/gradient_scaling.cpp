#include "ddp/gradient_scaling.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "ddp/error.hpp"
#include "worker_runtime/engine/device_number.hpp"
#include "worker_runtime/engine/handle.hpp"
#include "worker_runtime/engine/model_gradients.hpp"

namespace ddp {

using namespace gradient_engine;

namespace {

void require_above_0(double value, const char* name, const char* call) {
  if (value > 0) return;
  throw InvalidArgument(std::string(name) + " = " + std::to_string(value) + "\nwhere: " + call +
                        "\ntry:   a number above 0");
}

}  // namespace

class GradientNorm::Impl {
 public:
  explicit Impl(std::unique_ptr<process_group::HostCopy> copy) : copy_(std::move(copy)) {}

  double value() {
    if (copy_) {
      value_ = process_group::value_of<double>(*copy_);
      copy_.reset();
    }
    return value_;
  }

 private:
  std::unique_ptr<process_group::HostCopy> copy_;  // until somebody has asked
  double value_ = 0;
};

double GradientNorm::value() const { return require_impl(impl_, "GradientNorm").value(); }

GradientNorm DDP_ABI::gradient_norm(DistributedDataParallel& model) {
  const auto gradients = ModelGradients::of(model);
  return GradientNorm(
      std::make_shared<GradientNorm::Impl>(gradients.arithmetic->norm(gradients.buckets, gradients.stream)));
}

GradientNorm DDP_ABI::clip_gradients_by_norm(DistributedDataParallel& model, double norm_max) {
  require_above_0(norm_max, "norm_max", "clip_gradients_by_norm");
  const auto gradients = ModelGradients::of(model);
  return GradientNorm(std::make_shared<GradientNorm::Impl>(
      gradients.arithmetic->clip_by_norm(gradients.buckets, norm_max, gradients.stream)));
}

void DDP_ABI::clip_gradients_by_value(DistributedDataParallel& model, double value_max) {
  require_above_0(value_max, "value_max", "clip_gradients_by_value");
  const auto gradients = ModelGradients::of(model);
  gradients.arithmetic->clamp(gradients.buckets, value_max, gradients.stream);
}

class LossScaler::Impl {
 public:
  Impl(ProcessGroup group, LossScalerOptions options)
      : group_(std::move(group)), options_(options), scale_(options.scale) {}

  double scale() const { return scale_; }

  bool unscale(DistributedDataParallel& model) {
    const auto gradients = ModelGradients::of(model);
    const MemoryRange is_bad = is_bad_.in(group_, options_.collective);
    auto* const flag = static_cast<std::int32_t*>(is_bad.data);
    const CollectiveOptions collective{.timeout = options_.collective.timeout, .stream = gradients.stream};
    gradients.arithmetic->find_non_finite(gradients.buckets, flag, gradients.stream);
    group_.all_reduce(is_bad, ReduceOp::max, collective);
    gradients.arithmetic->scale_unless(flag, gradients.buckets, 1 / scale_, gradients.stream);
    const auto of_all = gradients.memory->begin_read(flag, sizeof *flag, gradients.stream);
    const bool is_good = process_group::value_of<std::int32_t>(*of_all) == 0;
    adapt(is_good);
    return is_good;
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
  std::int64_t good_steps_ = 0;        // since the scale changed last
  DeviceNumber<std::int32_t> is_bad_;  // whether a gradient is not finite
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
