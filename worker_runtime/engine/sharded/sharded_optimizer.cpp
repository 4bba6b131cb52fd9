#include "ddp/sharded_optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/fnv1a.hpp"
#include "ddp/error.hpp"
#include "worker_runtime/engine/device_number.hpp"
#include "worker_runtime/engine/handle.hpp"
#include "worker_runtime/engine/hooks/exact_text.hpp"
#include "worker_runtime/engine/sharded/optimizer_numbers.hpp"
#include "worker_runtime/engine/sharded/optimizer_state.hpp"
#include "worker_runtime/engine/sharded/shards.hpp"
#include "worker_runtime/process_group/device_arithmetic.hpp"
#include "worker_runtime/process_group/device_memory.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"

namespace ddp {
namespace {

using gradient_engine::Piece;

[[noreturn]] void refuse_optimizer(const std::string& what, const std::string& advice) {
  throw InvalidArgument(what + "\nwhere: ShardedOptimizer\ntry:   " + advice);
}

void require_range(const char* name, double value, bool is_in_range, const char* advice) {
  if (!is_in_range) refuse_optimizer(std::string(name) + " = " + std::to_string(value), advice);
}

void check_optimizer(const AdamWOptions& its) {
  require_range("learning_rate", its.learning_rate, its.learning_rate >= 0, "0 or more");
  require_range("beta1", its.beta1, its.beta1 >= 0 && its.beta1 < 1, "a number from 0 on and below 1");
  require_range("beta2", its.beta2, its.beta2 >= 0 && its.beta2 < 1, "a number from 0 on and below 1");
  require_range("epsilon", its.epsilon, its.epsilon > 0, "a small number above 0");
  require_range("weight_decay", its.weight_decay, its.weight_decay >= 0, "0 or more");
}

void check_optimizer(const SgdOptions& its) {
  require_range("learning_rate", its.learning_rate, its.learning_rate >= 0, "0 or more");
  require_range("momentum", its.momentum, its.momentum >= 0 && its.momentum < 1, "a number from 0 on and below 1");
  require_range("weight_decay", its.weight_decay, its.weight_decay >= 0, "0 or more");
}

std::string text_of(const AdamWOptions& its) {
  using gradient_engine::exact_text;
  return "AdamW, learning_rate = " + exact_text(its.learning_rate) + ", beta1 = " + exact_text(its.beta1) +
         ", beta2 = " + exact_text(its.beta2) + ", epsilon = " + exact_text(its.epsilon) +
         ", weight_decay = " + exact_text(its.weight_decay);
}

std::string text_of(const SgdOptions& its) {
  using gradient_engine::exact_text;
  return "SGD, learning_rate = " + exact_text(its.learning_rate) + ", momentum = " + exact_text(its.momentum) +
         ", weight_decay = " + exact_text(its.weight_decay) + ", nesterov = " + (its.nesterov ? "true" : "false");
}

void check_optimized(const std::vector<Parameter>& parameters, const Device& device, Sharding sharding) {
  for (const Parameter& each : parameters) {
    const DataType type = each.values.type;
    const bool is_known = type == DataType::float32 || type == DataType::float16 || type == DataType::bfloat16;
    if (each.values.device == device && is_known) continue;
    refuse_optimizer("parameter " + each.name + " is of type " + name_of(type) +
                         (each.values.device == device ? "" : ", and not on the group's device"),
                     "float32, float16 or bfloat16 on the device of the group");
  }
  if (sharding == Sharding::gradients && device.kind == Device::Kind::cuda) {
    refuse_optimizer("Sharding::gradients on a GPU", "Sharding::optimizer, or host memory");
  }
}

void check_same_parameters(const std::vector<Parameter>& parameters, const std::vector<GradientBucket>& buckets) {
  std::size_t count = 0;
  for (const GradientBucket& bucket : buckets) {
    for (std::size_t i = 0; i < bucket.indices.size(); ++i, ++count) {
      const std::size_t index = bucket.indices[i];
      const bool is_same = index < parameters.size() && parameters[index].name == bucket.parameters[i].name &&
                           parameters[index].values.count == bucket.parameters[i].values.count &&
                           parameters[index].values.type == bucket.gradients.type &&
                           parameters[index].values.device == bucket.gradients.device;
      if (!is_same) refuse_optimizer("the model has other parameters than the optimizer", "the same list for both");
    }
  }
  if (count != parameters.size()) {
    refuse_optimizer("the model has other parameters than the optimizer", "the same list for both");
  }
}

void check_index(std::size_t index, std::size_t count) {
  if (index < count) return;
  refuse_optimizer("parameter " + std::to_string(index) + " of a model with " + std::to_string(count),
                   "an index into the parameters that it was made with");
}

// Some of its elements.
MemoryRange part_of(const MemoryRange& values, std::size_t first, std::size_t count) {
  return {static_cast<std::byte*>(values.data) + first * size_of(values.type), count, values.type, values.device};
}

MemoryRange values_of(const Piece& piece, const std::vector<Parameter>& parameters) {
  return part_of(parameters[piece.parameter].values, piece.first, piece.count);
}

std::size_t moment_count(const std::variant<AdamWOptions, SgdOptions>& options) {
  const auto* const sgd = std::get_if<SgdOptions>(&options);
  return sgd == nullptr ? 2 : sgd->momentum > 0 ? 1 : 0;
}

void give_up(ProcessGroup& group) noexcept {
  try {
    group.abort("a ShardedOptimizer ended by an exception");
  } catch (...) {  // a forked child has no part in the group
  }
}

}  // namespace

// As a communication hook it reduces the gradients. The division of the buckets is the only thing that both sides
// share.
class ShardedOptimizer::Impl : public CommunicationHook {
 public:
  Impl(ProcessGroup group, std::vector<Parameter> parameters, std::variant<AdamWOptions, SgdOptions> options,
       Sharding sharding)
      : group_(std::move(group)),
        parameters_(std::move(parameters)),
        options_(std::move(options)),
        sharding_(sharding),
        steps_(parameters_.size()),
        skipped_(parameters_.size()),
        unused_(parameters_.size()),
        state_(parameters_, moment_count(options_), group_),
        memory_(group_.impl()->backend().device_memory()),
        arithmetic_(group_.impl()->backend().device_arithmetic()) {}

  // Nobody writes to the parameters afterwards. While an exception is on its way, the other ranks may be at something
  // else.
  ~Impl() override {
    if (std::uncaught_exceptions() > 0) give_up(group_);
    for (BucketState& bucket : buckets_) {
      try {
        bucket.wait();
      } catch (...) {  // nobody asks any more
      }
    }
  }

  // --- as a hook ---

  std::string describe() const override {
    const char* const shardings[] = {"none", "optimizer", "gradients"};
    base::Fnv1a parameters;
    for (const Parameter& each : parameters_) {
      parameters.add(each.name);
      parameters.add(each.values.count);
      parameters.add(static_cast<std::uint64_t>(each.values.type));
    }
    return std::string("ShardedOptimizer, sharding = ") + shardings[static_cast<std::size_t>(sharding_)] + ", " +
           std::visit([](const auto& options) { return text_of(options); }, options_) +
           ", hash of its parameters = " + std::to_string(parameters.value());
  }

  bool leaves_gradients() const override { return sharding_ == Sharding::none; }
  bool averages_over_all_ranks() const override { return true; }

  void scale_gradients(double factor) override {
    std::vector<MemoryRange> parts;
    for (const BucketState& bucket : buckets_) {
      if (bucket.is_reduced) parts.push_back(bucket.part);
    }
    arithmetic_->scale(parts, factor, collective_.stream);
  }

  void begin(ProcessGroup& group, const std::vector<GradientBucket>& buckets, CollectiveOptions options) override {
    if (group.impl() != group_.impl()) {
      refuse_optimizer("the model has another group than the optimizer", "the same group for both");
    }
    check_same_parameters(parameters_, buckets);
    wait();
    collective_ = options;
    const int ranks = sharding_ == Sharding::none ? 1 : group.size();
    std::vector<Piece> pieces = gradient_engine::pieces_of(buckets, ranks);
    if (std::any_of(steps_.begin(), steps_.end(), [](std::int64_t steps) { return steps > 0; })) {
      state_.redivide(std::move(pieces), group_, owner(), collective_);
    } else {
      state_.begin(std::move(pieces), owner(), collective_.stream);
    }
    buckets_.clear();
    last_step_.reset();
    std::fill(unused_.begin(), unused_.end(), false);  // that was of the model before, or of gradients that are gone
    bucket_of_.assign(parameters_.size(), 0);
    std::size_t bytes = 0;  // of this rank's parts
    for (const GradientBucket& bucket : buckets) {
      MemoryRange part = bucket.padded;
      part.count /= static_cast<std::size_t>(ranks);
      bytes += part.bytes();
      part.data = static_cast<std::byte*>(part.data) + static_cast<std::size_t>(owner()) * part.bytes();
      buckets_.push_back({part});
      for (const std::size_t parameter : bucket.indices) bucket_of_[parameter] = bucket.number;
    }
    if (sharding_ != Sharding::gradients) return;
    shards_ = group.allocate(bytes, options);
    auto* next = static_cast<std::byte*>(shards_.data());
    for (BucketState& bucket : buckets_) {
      bucket.part.data = next;
      next += bucket.part.bytes();
    }
  }

  void gradients_end() noexcept override {
    for (BucketState& bucket : buckets_) bucket.is_reduced = false;
    shards_ = {};
  }

  void parameters_unused(const std::vector<std::size_t>& parameters) noexcept override {
    std::fill(unused_.begin(), unused_.end(), false);
    for (const std::size_t parameter : parameters) unused_[parameter] = true;
  }

  std::optional<Work> next(const HookCall& call) override {
    BucketState& bucket = buckets_[call.bucket.number];
    if (call.stage > 0) {
      bucket.is_reduced = true;
      return std::nullopt;
    }
    if (last_step_ != call.step) {  // the program may have left out the step() of the last gradients
      last_step_ = call.step;
      forget_gradients();
    }
    if (sharding_ == Sharding::none) {
      return call.group.all_reduce_async(call.bucket.gradients, ReduceOp::average, call.options);
    }
    return call.group.reduce_scatter_async(call.bucket.padded, bucket.part, ReduceOp::average, call.options);
  }

  // --- as an optimizer ---

  void step() {
    require_model("step");
    wait();
    state_.make_masters();
    std::vector<bool> is_counted(parameters_.size());
    for (const Piece& piece : state_.pieces()) {
      if (!is_updated(piece) || is_counted[piece.parameter]) continue;
      is_counted[piece.parameter] = true;
      ++steps_[piece.parameter];
    }
    std::visit([this](const auto& options) { update(options); }, options_);
    if (sharding_ != Sharding::none) begin_to_share();
    forget_gradients();
  }

  void wait() {
    for (BucketState& bucket : buckets_) bucket.wait();
  }

  void wait(std::size_t index) {
    check_index(index, parameters_.size());
    if (!buckets_.empty()) buckets_[bucket_of_[index]].wait();
  }

  void set_learning_rate(double learning_rate) {
    require_range("learning_rate", learning_rate, learning_rate >= 0, "0 or more");
    std::visit([learning_rate](auto& options) { options.learning_rate = learning_rate; }, options_);
  }

  void set_skipped(std::size_t index, bool is_skipped) {
    check_index(index, parameters_.size());
    skipped_[index] = is_skipped;
  }

  double clip_gradients_by_norm(double norm_max) {
    require_model("clip_gradients_by_norm");
    require_range("norm_max", norm_max, norm_max > 0, "a number above 0");
    double squares = process_group::value_of<double>(*arithmetic_->sum_of_squares(own_gradients(), collective_.stream));
    if (sharding_ != Sharding::none) squares = sum_over_ranks(squares);
    const double norm = std::sqrt(squares) * unscale_ * clip_;
    if (norm > norm_max && !std::isinf(norm)) clip_ *= norm_max / norm;
    return norm;
  }

  void clip_gradients_by_value(double value_max) {
    require_model("clip_gradients_by_value");
    require_range("value_max", value_max, value_max > 0, "a number above 0");
    arithmetic_->clamp(own_gradients(), value_max / (unscale_ * clip_), collective_.stream);
  }

  bool unscale_gradients(double scale) {
    require_model("unscale_gradients");
    require_range("scale", scale, scale > 0 && std::isfinite(scale), "a finite number above 0");
    const MemoryRange is_bad = is_bad_.in(group_, collective_);
    auto* const flag = static_cast<std::int32_t*>(is_bad.data);
    arithmetic_->find_non_finite(own_gradients(), flag, collective_.stream);
    group_.all_reduce(is_bad, ReduceOp::max, collective_);
    const auto of_all = memory_->begin_read(flag, sizeof *flag, collective_.stream);
    if (process_group::value_of<std::int32_t>(*of_all) != 0) {
      forget_gradients();
      return false;
    }
    unscale_ = 1 / scale;
    return true;
  }

  Parameter steps() { return {"optimizer.steps", {static_cast<std::int64_t>(steps_.size())}, steps_}; }

  std::vector<Shard> shards() {
    require_model("shards");
    state_.make_masters();
    return state_.shards();
  }

  Sharding sharding() const { return sharding_; }

 private:
  struct BucketState {
    MemoryRange part;         // the mean gradients that this rank owns
    bool is_reduced = false;  // in last_step_, and step() has not used the gradients
    Work sharing{};           // of the parameters

    void wait() {
      sharing.wait();
      sharing = {};
    }
  };

  int owner() const { return sharding_ == Sharding::none ? 0 : group_.rank(); }

  bool is_updated(const Piece& piece) const {
    return buckets_[piece.bucket].is_reduced && !skipped_[piece.parameter] && !unused_[piece.parameter];
  }

  bool is_own_and_updated(const Piece& piece) const { return piece.owner == owner() && is_updated(piece); }

  MemoryRange gradient_of(const Piece& piece) const {
    return part_of(buckets_[piece.bucket].part, piece.offset, piece.count);
  }

  // Of what the next step() updates: this rank's part of each bucket as a whole, or its pieces if some are left out.
  std::vector<MemoryRange> own_gradients() const {
    std::vector<bool> is_whole(buckets_.size(), true);
    for (const Piece& piece : state_.pieces()) {
      if (!is_updated(piece)) is_whole[piece.bucket] = false;
    }
    std::vector<MemoryRange> ranges;
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      if (is_whole[i] && buckets_[i].is_reduced) ranges.push_back(buckets_[i].part);
    }
    for (const Piece& piece : state_.pieces()) {
      if (!is_whole[piece.bucket] && is_own_and_updated(piece)) ranges.push_back(gradient_of(piece));
    }
    return ranges;
  }

  tensor::OptimizedPiece optimized(std::size_t index) {
    const Piece& piece = state_.pieces()[index];
    const MemoryRange p = values_of(piece, parameters_), g = gradient_of(piece);
    float* const master = state_.master(index);
    return {.type = g.type,
            .p = master != nullptr ? master : static_cast<float*>(p.data),
            .g = g.data,
            .m = state_.moment(0, index),
            .v = state_.moment(1, index),
            .rounded = master != nullptr ? p.data : nullptr,
            .count = piece.count};
  }

  // What was updated equally often has the same numbers, and goes together.
  template <class Options>
  void update(const Options& options) {
    std::map<std::int64_t, std::vector<tensor::OptimizedPiece>> by_steps;
    for (std::size_t i = 0; i < state_.pieces().size(); ++i) {
      const Piece& piece = state_.pieces()[i];
      if (is_own_and_updated(piece)) by_steps[steps_[piece.parameter]].push_back(optimized(i));
    }
    const auto scale = static_cast<float>(unscale_ * clip_);
    for (const auto& [steps, pieces] : by_steps) {
      arithmetic_->update(pieces, gradient_engine::numbers_of(options, static_cast<std::size_t>(steps), scale),
                          collective_.stream);
    }
  }

  double sum_over_ranks(double number) {
    const MemoryRange sum = sum_.in(group_, collective_);
    memory_->write(sum.data, std::as_bytes(std::span(&number, 1)), collective_.stream);
    group_.all_reduce(sum, ReduceOp::sum, collective_);
    return process_group::value_of<double>(*memory_->begin_read(sum.data, sizeof number, collective_.stream));
  }

  void forget_gradients() {
    unscale_ = clip_ = 1;
    for (BucketState& bucket : buckets_) bucket.is_reduced = false;
  }

  // Each bucket's parameters, as one call.
  void begin_to_share() {
    const std::vector<Piece>& pieces = state_.pieces();
    for (std::size_t first = 0; first < pieces.size();) {
      const std::size_t bucket = pieces[first].bucket;
      std::size_t end = first;
      while (end < pieces.size() && pieces[end].bucket == bucket) ++end;
      if (buckets_[bucket].is_reduced) {
        buckets_[bucket].sharing = group_.coalesce(
            [&] {
              for (std::size_t i = first; i < end; ++i) {
                static_cast<void>(
                    group_.broadcast_async(values_of(pieces[i], parameters_), pieces[i].owner, collective_));
              }
            },
            collective_);
      }
      first = end;
    }
  }

  void require_model(const char* call) const {
    if (!buckets_.empty()) return;
    refuse_optimizer(std::string(call) + "() before there is a model",
                     "prepare() the options, and make a DistributedDataParallel with them");
  }

  ProcessGroup group_;
  std::vector<Parameter> parameters_;
  std::variant<AdamWOptions, SgdOptions> options_;
  Sharding sharding_;
  std::vector<std::int64_t> steps_;  // by parameter: that have updated it
  std::vector<bool> skipped_;        // by parameter
  std::vector<bool> unused_;         // by parameter: in the last step frozen, or with Unused::keep used by no rank
  CollectiveOptions collective_{};
  gradient_engine::OptimizerState state_;
  std::shared_ptr<process_group::DeviceMemory> memory_;
  std::shared_ptr<process_group::DeviceArithmetic> arithmetic_;
  gradient_engine::DeviceNumber<double> sum_;           // of squares
  gradient_engine::DeviceNumber<std::int32_t> is_bad_;  // whether a gradient is not finite
  std::vector<BucketState> buckets_;
  std::vector<std::size_t> bucket_of_;      // by parameter
  RegisteredMemory shards_;                 // of gradients, with Sharding::gradients
  std::optional<std::uint64_t> last_step_;  // of the model: HookCall::step
  double unscale_ = 1, clip_ = 1;           // factors of these gradients in step()
};

ShardedOptimizer::ShardedOptimizer(ProcessGroup group, std::vector<Parameter> parameters,
                                   std::variant<AdamWOptions, SgdOptions> options, Sharding sharding) {
  if (group.impl() == nullptr) refuse_optimizer("an empty group", "the group that trains");
  std::visit([](const auto& each) { check_optimizer(each); }, options);
  check_optimized(parameters, group.device(), sharding);
  impl_ = std::make_shared<Impl>(std::move(group), std::move(parameters), std::move(options), sharding);
}

void ShardedOptimizer::prepare(DistributedDataParallelOptions& options) {
  options.release_gradients = sharding() == Sharding::gradients;
  options.communication_hook = impl_;
}
void ShardedOptimizer::step() { gradient_engine::require_impl(impl_, "ShardedOptimizer").step(); }
void ShardedOptimizer::wait() { gradient_engine::require_impl(impl_, "ShardedOptimizer").wait(); }
void ShardedOptimizer::wait(std::size_t index) { gradient_engine::require_impl(impl_, "ShardedOptimizer").wait(index); }
void ShardedOptimizer::set_learning_rate(double learning_rate) {
  gradient_engine::require_impl(impl_, "ShardedOptimizer").set_learning_rate(learning_rate);
}
void ShardedOptimizer::set_skipped(std::size_t index, bool is_skipped) {
  gradient_engine::require_impl(impl_, "ShardedOptimizer").set_skipped(index, is_skipped);
}
double ShardedOptimizer::clip_gradients_by_norm(double norm_max) {
  return gradient_engine::require_impl(impl_, "ShardedOptimizer").clip_gradients_by_norm(norm_max);
}
void ShardedOptimizer::clip_gradients_by_value(double value_max) {
  gradient_engine::require_impl(impl_, "ShardedOptimizer").clip_gradients_by_value(value_max);
}
bool ShardedOptimizer::unscale_gradients(double scale) {
  return gradient_engine::require_impl(impl_, "ShardedOptimizer").unscale_gradients(scale);
}
Parameter ShardedOptimizer::steps() { return gradient_engine::require_impl(impl_, "ShardedOptimizer").steps(); }
std::vector<ShardedOptimizer::Shard> ShardedOptimizer::shards() {
  return gradient_engine::require_impl(impl_, "ShardedOptimizer").shards();
}
Sharding ShardedOptimizer::sharding() const {
  return gradient_engine::require_impl(impl_, "ShardedOptimizer").sharding();
}

}  // namespace ddp
