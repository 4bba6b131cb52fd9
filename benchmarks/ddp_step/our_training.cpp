#include "benchmarks/ddp_step/our_training.hpp"

#include <ddp/ddp.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/common/sides/serve.hpp"
#include "benchmarks/common/sides/values.hpp"
#include "benchmarks/ddp_step/mlp.hpp"

namespace ddp::benchmarks {

namespace {

std::vector<Parameter> parameters_of(Mlp& mlp) {
  const auto width = static_cast<std::int64_t>(mlp.sizes().width);
  std::vector<Parameter> out;
  for (std::size_t layer = 0; layer < mlp.sizes().layers; ++layer) {
    const std::string name = "layer" + std::to_string(layer);
    out.push_back({name + ".weight", {width, width}, mlp.weights(layer)});
    out.push_back({name + ".bias", {width}, mlp.biases(layer)});
  }
  return out;
}

DistributedDataParallelOptions overwriting() {
  DistributedDataParallelOptions out;
  out.zero_gradients = false;  // the backward pass writes every gradient
  return out;
}

class Training : public Side {
 public:
  explicit Training(const ProcessGroup& group)
      : group_(group),
        mlp_({}, 17 + static_cast<unsigned>(group.rank())),
        model_(group, parameters_of(mlp_), overwriting()) {
    for (std::size_t layer = 0; layer < mlp_.sizes().layers; ++layer) {
      gradients_.push_back({static_cast<float*>(model_.gradient(2 * layer).data),
                            static_cast<float*>(model_.gradient(2 * layer + 1).data)});
    }
  }

  void prepare(const Request& request) override {
    what_ = request.what;
    if (what_ != "sync" && what_ != "no_sync" && what_ != "all_reduce")
      throw std::invalid_argument("no step: " + what_);
    if (what_ == "all_reduce" && all_gradients_.data() == nullptr) all_gradients_ = group_.allocate(parameter_bytes());
  }

  void rewrite() override {
    if (what_ == "all_reduce")
      write_values(static_cast<float*>(all_gradients_.data()), parameter_count(), group_.rank());
  }

  void call() override {
    if (what_ == "all_reduce") {
      group_.all_reduce({static_cast<float*>(all_gradients_.data()), parameter_count()});
    } else {
      step(what_ == "sync" ? Sync::on : Sync::off);
    }
  }

  bool is_right() override {
    if (what_ == "all_reduce")
      return are_sums(static_cast<float*>(all_gradients_.data()), parameter_count(), group_.size());
    if (what_ == "no_sync") return true;
    // The gradients that came out are the mean of what each rank has without sync.
    const auto biases = [&] {
      const float* const first = gradients_.front().biases;
      return std::vector<float>(first, first + mlp_.sizes().width);
    };
    const auto synced = biases();
    step(Sync::off);
    auto mean = biases();
    group_.all_reduce(mean, ReduceOp::average);
    for (std::size_t i = 0; i < mean.size(); ++i) {
      if (!(std::abs(mean[i] - synced[i]) <= 1e-5F + 1e-3F * std::abs(mean[i]))) return false;
    }
    return true;
  }

  void release() override { all_gradients_ = {}; }

 private:
  void step(Sync sync) {
    auto step = model_.begin_step(sync);
    mlp_.step(gradients_, [&](std::size_t layer) {
      step.ready(2 * layer + 1);
      step.ready(2 * layer);
    });
    step.finish();
  }
  std::size_t parameter_count() const { return mlp_.sizes().layers * (mlp_.sizes().width + 1) * mlp_.sizes().width; }
  std::size_t parameter_bytes() const { return parameter_count() * sizeof(float); }

  ProcessGroup group_;
  Mlp mlp_;
  DistributedDataParallel model_;
  std::vector<Mlp::Gradients> gradients_;
  RegisteredMemory all_gradients_;  // as many bytes in one buffer
  std::string what_;
};

}  // namespace

int be_training_rank(const char* socket_name) {
  const auto group = init_process_group();
  Training training(group);
  RankLink link(socket_name, group.rank());
  serve(training, link, group.rank(), group.size());
  return 0;
}

}  // namespace ddp::benchmarks
