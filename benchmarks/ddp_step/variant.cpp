#include "benchmarks/ddp_step/variant.hpp"

#include <ddp/gradient_compression.hpp>
#include <ddp/local_sgd.hpp>
#include <ddp/sharded_optimizer.hpp>

#include <stdexcept>

namespace ddp::benchmarks {

namespace {

// A rate of 0 costs as much as any other, and each step has the same gradients.
AdamWOptions adamw() {
  AdamWOptions out;
  out.learning_rate = 0;
  return out;
}

}  // namespace

Variant::Variant(const ProcessGroup& group, Model& model, const std::string& name) : model_(model) {
  const auto parameters = model.parameters();
  DistributedDataParallelOptions options;
  options.zero_gradients = false;  // the backward pass writes every gradient
  if (name == "bf16") {
    options.communication_hook = compressed_all_reduce();
  } else if (name == "fp16") {
    options.communication_hook = compressed_all_reduce({.type = DataType::float16});
  } else if (name == "power_sgd" || name == "power_sgd_2") {
    options.communication_hook = power_sgd({.rank = name == "power_sgd" ? 1 : 2, .start_step = 0});
  } else if (name == "top_k") {
    options.communication_hook = top_k({.ratio = 0.01});
  } else if (name == "local_sgd") {
    options.communication_hook = post_local_sgd();
    average_.emplace(std::vector<AverageLevel>{{group, kLocalSteps}}, parameters);
  } else if (name == "diloco") {
    options.communication_hook = post_local_sgd();
    diloco_.emplace(group, parameters, DiLoCoOptions{.period = kLocalSteps});
  } else if (name == "adamw" || name == "zero1" || name == "zero2") {
    const auto sharding = name == "adamw"   ? Sharding::none
                          : name == "zero1" ? Sharding::optimizer
                                            : Sharding::gradients;
    optimizer_.emplace(group, parameters, adamw(), sharding);
    optimizer_->prepare(options);
  } else if (name != "sync") {
    throw std::invalid_argument("no variant: " + name);
  }
  engine_.emplace(group, parameters, options);
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    gradients_.push_back(engine_->gradient<float>(p).data());
  }
}

void Variant::step(Sync sync) {
  auto step = engine_->begin_step(sync);
  model_.step(gradients_, [&](std::size_t p) { step.ready(p); });
  step.finish();
  if (optimizer_) {
    optimizer_->step();
    optimizer_->wait();  // what is still sent belongs to this step
  }
  if (average_) average_->step();
  if (diloco_) diloco_->step();
}

}  // namespace ddp::benchmarks
