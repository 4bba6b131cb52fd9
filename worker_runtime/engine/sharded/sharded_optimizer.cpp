#include "ddp/sharded_optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "base/fnv1a.hpp"
#include "ddp/error.hpp"
#include "worker_runtime/engine/handle.hpp"
#include "worker_runtime/engine/hooks/exact_text.hpp"
#include "worker_runtime/engine/hooks/host_gradients_only.hpp"
#include "worker_runtime/engine/host_gradients.hpp"
#include "worker_runtime/engine/sharded/shards.hpp"
#include "worker_runtime/engine/sharded/update.hpp"

namespace ddp {
namespace {

using gradient_engine::Move;
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

void check_optimized(const std::vector<Parameter>& parameters) {
  for (const Parameter& each : parameters) {
    if (each.values.device.kind == Device::Kind::cpu && each.values.type == DataType::float32) continue;
    refuse_optimizer("parameter " + each.name + " is of type " + name_of(each.values.type) +
                         (each.values.device.kind == Device::Kind::cpu ? "" : ", on a GPU"),
                     "float32 in host memory");
  }
}

void check_same_parameters(const std::vector<Parameter>& parameters, const std::vector<GradientBucket>& buckets) {
  std::size_t count = 0;
  for (const GradientBucket& bucket : buckets) {
    for (std::size_t i = 0; i < bucket.indices.size(); ++i, ++count) {
      const std::size_t index = bucket.indices[i];
      const bool is_same = index < parameters.size() && parameters[index].name == bucket.parameters[i].name &&
                           parameters[index].values.count == bucket.parameters[i].values.count;
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

// A rank's part of the optimizer's state: arrays of the elements of its pieces, one after the other.
using Moments = std::vector<std::vector<float>>;

// Where the elements of each piece lie in the arrays of its owner.
std::vector<std::size_t> places_of(const std::vector<Piece>& pieces, int size) {
  std::vector<std::size_t> next(static_cast<std::size_t>(size)), places;
  for (const Piece& piece : pieces) {
    std::size_t& place = next[static_cast<std::size_t>(piece.owner)];
    places.push_back(place);
    place += piece.count;
  }
  return places;
}

std::size_t count_of(const std::vector<Piece>& pieces, int owner) {
  std::size_t count = 0;
  for (const Piece& piece : pieces) count += piece.owner == owner ? piece.count : 0;
  return count;
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
        skipped_(parameters_.size()) {}

  // Nobody writes to the parameters afterwards. While an exception is on its way, the other ranks may be at something
  // else.
  ~Impl() override {
    if (std::uncaught_exceptions() > 0) give_up();
    for (BucketState& bucket : buckets_) {
      try {
        wait_for(bucket);
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
    }
    return std::string("ShardedOptimizer, sharding = ") + shardings[static_cast<std::size_t>(sharding_)] + ", " +
           std::visit([](const auto& options) { return text_of(options); }, options_) +
           ", hash of its parameters = " + std::to_string(parameters.value());
  }

  bool leaves_gradients() const override { return sharding_ == Sharding::none; }

  void begin(ProcessGroup& group, const std::vector<GradientBucket>& buckets, CollectiveOptions options) override {
    gradient_engine::require_float32_on_host(buckets, "ShardedOptimizer");
    if (group.impl() != group_.impl()) {
      refuse_optimizer("the model has another group than the optimizer", "the same group for both");
    }
    check_same_parameters(parameters_, buckets);
    wait();
    collective_ = options;
    const int ranks = sharding_ == Sharding::none ? 1 : group.size();
    std::vector<Piece> pieces = gradient_engine::pieces_of(buckets, ranks);
    Moments moments(moment_count(), std::vector<float>(count_of(pieces, owner())));
    if (std::any_of(steps_.begin(), steps_.end(), [](std::int64_t steps) { return steps > 0; })) {
      carry_over(pieces, moments);
    }
    pieces_ = std::move(pieces);
    places_ = places_of(pieces_, ranks);
    moments_ = std::move(moments);
    buckets_.clear();
    std::size_t count = 0;
    for (const GradientBucket& bucket : buckets) {
      BucketState state{bucket.padded.count / static_cast<std::size_t>(ranks)};
      if (sharding_ == Sharding::gradients) count += state.part_count;
      buckets_.push_back(std::move(state));
    }
    if (sharding_ == Sharding::gradients) shards_ = group.allocate(count * sizeof(float), options);
    auto* next = static_cast<float*>(shards_.data());
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      auto* const start = static_cast<float*>(buckets[i].padded.data);
      if (sharding_ == Sharding::gradients) {
        buckets_[i].part = next;
        next += buckets_[i].part_count;
      } else {
        buckets_[i].part = start + static_cast<std::size_t>(owner()) * buckets_[i].part_count;
      }
    }
  }

  std::optional<Work> next(const HookCall& call) override {
    BucketState& bucket = buckets_[call.bucket.number];
    if (call.stage > 0) {
      bucket.is_reduced = true;
      return std::nullopt;
    }
    if (sharding_ == Sharding::none) {
      return call.group.all_reduce_async(call.bucket.gradients, ReduceOp::average, call.options);
    }
    return call.group.reduce_scatter_async(call.bucket.padded, {bucket.part, bucket.part_count, DataType::float32},
                                           ReduceOp::average, call.options);
  }

  // --- as an optimizer ---

  void prepare(DistributedDataParallelOptions& options, const std::shared_ptr<Impl>& self) {
    options.communication_hook = self;
    options.release_gradients = sharding_ == Sharding::gradients;
  }

  void step() {
    require_model("step");
    wait();
    std::vector<bool> is_counted(parameters_.size());
    for (const Piece& piece : pieces_) {
      if (!is_updated(piece) || is_counted[piece.parameter]) continue;
      is_counted[piece.parameter] = true;
      ++steps_[piece.parameter];
    }
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const Piece& piece = pieces_[i];
      if (piece.owner == owner() && is_updated(piece)) update(piece, places_[i]);
    }
    scale_ = 1;
    if (sharding_ != Sharding::none) begin_to_share();
    for (BucketState& bucket : buckets_) bucket.is_reduced = false;
  }

  void wait() {
    for (BucketState& bucket : buckets_) wait_for(bucket);
  }

  void wait(std::size_t index) {
    check_index(index, parameters_.size());
    for (const Piece& piece : pieces_) {
      if (piece.parameter == index) return wait_for(buckets_[piece.bucket]);
    }
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
    scale_ = 1;
    double squares = 0;
    for (const Piece& piece : pieces_) {
      if (piece.owner != owner() || !is_updated(piece)) continue;
      squares += gradient_engine::sum_of_squares({gradient_of(piece), piece.count, DataType::float32});
    }
    if (sharding_ != Sharding::none) {
      group_.all_reduce(MemoryRange(&squares, 1, DataType::float64), ReduceOp::sum, collective_);
    }
    const double norm = std::sqrt(squares);
    if (norm > norm_max && !std::isinf(norm)) scale_ = static_cast<float>(norm_max / norm);
    return norm;
  }

  Parameter steps() { return {"optimizer.steps", {static_cast<std::int64_t>(steps_.size())}, steps_}; }

  std::vector<Shard> shards() {
    require_model("shards");
    const char* const names[] = {".m", ".v"};
    std::vector<Shard> shards;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const Piece& piece = pieces_[i];
      if (piece.owner != owner()) continue;
      const Parameter& parameter = parameters_[piece.parameter];
      for (std::size_t which = 0; which < moments_.size(); ++which) {
        shards.push_back({"optimizer." + parameter.name + names[which], parameter.shape, piece.first,
                          MemoryRange(moments_[which].data() + places_[i], piece.count, DataType::float32)});
      }
    }
    return shards;
  }

  Sharding sharding() const { return sharding_; }

 private:
  struct BucketState {
    std::size_t part_count = 0;  // elements that each rank owns
    float* part = nullptr;       // the mean gradients that this rank owns
    bool is_reduced = false;     // since the last step()
    Work sharing{};              // of the parameters
  };

  int owner() const { return sharding_ == Sharding::none ? 0 : group_.rank(); }

  std::size_t moment_count() const {
    const auto* const sgd = std::get_if<SgdOptions>(&options_);
    return sgd == nullptr ? 2 : sgd->momentum > 0 ? 1 : 0;
  }

  bool is_updated(const Piece& piece) const { return buckets_[piece.bucket].is_reduced && !skipped_[piece.parameter]; }

  float* gradient_of(const Piece& piece) { return buckets_[piece.bucket].part + piece.offset; }
  float* values_of(const Piece& piece) const {
    return static_cast<float*>(parameters_[piece.parameter].values.data) + piece.first;
  }

  void update(const Piece& piece, std::size_t place) {
    float* const p = values_of(piece);
    const float* const g = gradient_of(piece);
    const auto t = static_cast<std::size_t>(steps_[piece.parameter]);
    if (const auto* const adamw = std::get_if<AdamWOptions>(&options_)) {
      return gradient_engine::update(*adamw, t, scale_, p, g, moments_[0].data() + place, moments_[1].data() + place,
                                     piece.count);
    }
    float* const m = moments_.size() == 0 ? nullptr : moments_[0].data() + place;
    gradient_engine::update(std::get<SgdOptions>(options_), t, scale_, p, g, m, piece.count);
  }

  // Each bucket's parameters, as one call.
  void begin_to_share() {
    for (std::size_t first = 0; first < pieces_.size();) {
      const std::size_t bucket = pieces_[first].bucket;
      std::size_t end = first;
      while (end < pieces_.size() && pieces_[end].bucket == bucket) ++end;
      if (buckets_[bucket].is_reduced) {
        buckets_[bucket].sharing = group_.coalesce(
            [&] {
              for (std::size_t i = first; i < end; ++i) {
                const Piece& piece = pieces_[i];
                const MemoryRange values(values_of(piece), piece.count, DataType::float32);
                static_cast<void>(group_.broadcast_async(values, piece.owner, collective_));
              }
            },
            collective_);
      }
      first = end;
    }
  }

  static void wait_for(BucketState& bucket) {
    bucket.sharing.wait();
    bucket.sharing = {};
  }

  void give_up() noexcept {
    try {
      group_.abort("a ShardedOptimizer ended by an exception");
    } catch (...) {  // a forked child has no part in the group
    }
  }

  // Collective: what this rank has of the old division and others need, and the other way round.
  void carry_over(const std::vector<Piece>& pieces, Moments& moments) {
    const std::vector<std::size_t> places = places_of(pieces, sharding_ == Sharding::none ? 1 : group_.size());
    const std::vector<Move> moves = gradient_engine::moves_between(pieces_, pieces);
    for (std::size_t which = 0; which < moments.size(); ++which) {
      Work sent = group_.coalesce(
          [&] {
            for (const Move& move : moves) {
              const int from = pieces_[move.from].owner, to = pieces[move.to].owner;
              float* const source = moments_[which].data() + places_[move.from] + move.from_first;
              float* const target = moments[which].data() + places[move.to] + move.to_first;
              if (from == owner() && to == owner()) {
                std::copy_n(source, move.count, target);
              } else if (from == owner()) {
                static_cast<void>(group_.send_async({source, move.count, DataType::float32}, to, collective_));
              } else if (to == owner()) {
                static_cast<void>(group_.receive_async({target, move.count, DataType::float32}, from, collective_));
              }
            }
          },
          collective_);
      sent.wait();
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
  CollectiveOptions collective_{};
  std::vector<Piece> pieces_;
  std::vector<std::size_t> places_;  // by piece, in the moments of its owner
  Moments moments_;
  std::vector<BucketState> buckets_;
  RegisteredMemory shards_;  // of gradients, with Sharding::gradients
  float scale_ = 1;          // of the gradients of the next step()
};

ShardedOptimizer::ShardedOptimizer(ProcessGroup group, std::vector<Parameter> parameters,
                                   std::variant<AdamWOptions, SgdOptions> options, Sharding sharding) {
  if (group.impl() == nullptr) refuse_optimizer("an empty group", "the group that trains");
  std::visit([](const auto& each) { check_optimizer(each); }, options);
  check_optimized(parameters);
  impl_ = std::make_shared<Impl>(std::move(group), std::move(parameters), std::move(options), sharding);
}

void ShardedOptimizer::prepare(DistributedDataParallelOptions& options) {
  gradient_engine::require_impl(impl_, "ShardedOptimizer").prepare(options, impl_);
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
Parameter ShardedOptimizer::steps() { return gradient_engine::require_impl(impl_, "ShardedOptimizer").steps(); }
std::vector<ShardedOptimizer::Shard> ShardedOptimizer::shards() {
  return gradient_engine::require_impl(impl_, "ShardedOptimizer").shards();
}
Sharding ShardedOptimizer::sharding() const {
  return gradient_engine::require_impl(impl_, "ShardedOptimizer").sharding();
}

}  // namespace ddp
