#include "engine.hpp"

#include <ddp/gradient_compression.hpp>

#include <cstddef>
#include <utility>

namespace transformer {
namespace {

// The model is small, so buckets are small: several of them overlap with backward.
constexpr std::size_t kFirstBucketBytes = std::size_t{64} << 10;
constexpr std::size_t kBucketBytes = std::size_t{256} << 10;
constexpr std::uint64_t kExactSteps = 10;  // of PowerSGD: gradients change most at first

}  // namespace

ddp::AdamWOptions adamw_options(const Options& options) {
  ddp::AdamWOptions adamw;
  adamw.learning_rate = options.learning_rate;
  return adamw;
}

Engine::Engine(ddp::ProcessGroup world, std::vector<ddp::Parameter> parameters, AdamW& optimizer,
               const Options& options)
    : world_(std::move(world)), parameters_(std::move(parameters)), optimizer_(optimizer) {
  ddp::DistributedDataParallelOptions engine;
  engine.first_bucket_cap_bytes = kFirstBucketBytes;
  engine.bucket_cap_bytes = kBucketBytes;
  if (options.zero2) {
    sharded_.emplace(world_, parameters_, adamw_options(options), ddp::Sharding::gradients);
    sharded_->prepare(engine);
  } else if (options.bf16) {
    hook_ = ddp::compressed_all_reduce();
  } else if (options.powersgd_rank > 0) {
    hook_ = ddp::power_sgd({.rank = options.powersgd_rank, .start_step = kExactSteps});
  } else if (options.local_sgd_period > 0) {
    hook_ = ddp::post_local_sgd();
    average_.emplace(std::vector<ddp::AverageLevel>{{world_, options.local_sgd_period}}, parameters_);
  }
  if (hook_) engine.communication_hook = hook_;
  model_.emplace(world_, parameters_, engine);
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    gradients_.push_back(model_->gradient<float>(p).data());
  }
}

void Engine::add_to(ddp::Checkpointer& checkpoints) {
  checkpoints.add(parameters_);
  if (sharded_) {
    checkpoints.add(*sharded_);
  } else if (average_) {  // each rank's optimizer has seen gradients of its own
    checkpoints.add_own([this] { return optimizer_.state(); });
    checkpoints.add(average_->state());
  } else {
    checkpoints.add(optimizer_.state());
  }
  if (hook_) checkpoints.add_own([this] { return hook_->state(); });
}

bool Engine::update() {
  if (sharded_) {
    sharded_->step();
  } else {
    optimizer_.step(gradients_);
  }
  if (average_) is_same_on_all_ranks_ = average_->step();
  return is_same_on_all_ranks_;
}

void Engine::end() {
  if (sharded_) sharded_->wait();
  if (is_same_on_all_ranks_) return;
  for (const ddp::Parameter& parameter : parameters_) world_.all_reduce(parameter.values, ddp::ReduceOp::average);
}

}  // namespace transformer
