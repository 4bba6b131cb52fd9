// Trains modules of libtorch by ddp/torch.hpp, and beside each, in this process, one copy per rank whose gradients are
// averaged by hand. Prints a line for each check: "NAME: ok", or what differs. Compiled by libtorch_test.
//
//   libtorch_worker CHECKPOINT_FOLDER
#include <cmath>
#include <functional>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ddp/ddp.hpp"
#include "ddp/torch.hpp"

namespace {

namespace nn = ::torch::nn;
using ::at::Tensor;

constexpr int kSteps = 20, kSamples = 8;  // per rank and step

struct Net : nn::Module {
  virtual Tensor forward(Tensor input, int rank) = 0;
};
using NetPtr = std::shared_ptr<Net>;

struct Mlp : Net {
  explicit Mlp(::at::ScalarType type = ::at::kFloat) {
    register_module("layers", layers);
    to(type);
  }
  Tensor forward(Tensor input, int) override { return layers->forward(std::move(input)); }
  nn::Sequential layers{nn::Linear(16, 32), nn::ReLU(), nn::Linear(32, 4)};
};

struct Cnn : Net {
  Cnn() { register_module("layers", layers); }
  Tensor forward(Tensor input, int) override { return layers->forward(input.view({-1, 1, 4, 4})); }
  nn::Sequential layers{nn::Conv2d(nn::Conv2dOptions(1, 6, 3).padding(1)), nn::BatchNorm2d(6), nn::ReLU(),
                        nn::Flatten(), nn::Linear(96, 4)};
};

struct Rnn : Net {
  Rnn() {
    register_module("lstm", lstm);
    register_module("head", head);
  }
  Tensor forward(Tensor input, int) override {
    return head->forward(std::get<0>(lstm->forward(input.view({-1, 4, 4}))).select(1, -1));
  }
  nn::LSTM lstm{nn::LSTMOptions(4, 8).batch_first(true)};
  nn::Linear head{8, 4};
};

struct Tied : Net {
  Tied() {
    first->weight = second->weight;
    first->register_parameter("weight", second->weight);
    register_module("first", first);
    register_module("second", second);
    register_module("head", head);
  }
  Tensor forward(Tensor input, int) override {
    return head->forward(second->forward(first->forward(std::move(input)).tanh()));
  }
  struct SharedImpl : nn::Module {
    Tensor forward(const Tensor& input) { return ::at::linear(input, weight); }
    Tensor weight;
  };
  std::shared_ptr<SharedImpl> first = std::make_shared<SharedImpl>();
  nn::Linear second{16, 16}, head{16, 4};
};

struct Branch : Net {  // an odd rank does not use `even`
  Branch() {
    register_module("even", even);
    register_module("odd", odd);
  }
  Tensor forward(Tensor input, int rank) override {
    return rank % 2 == 0 ? odd->forward(input) + even->forward(input) : odd->forward(input);
  }
  nn::Linear even{16, 4}, odd{16, 4};
};

struct Frozen : Net {
  Frozen() {
    register_module("body", body);
    register_module("head", head);
    for (auto& parameter : body->parameters()) parameter.requires_grad_(false);
  }
  Tensor forward(Tensor input, int) override { return head->forward(body->forward(std::move(input)).relu()); }
  nn::Linear body{16, 16}, head{16, 4};
};

struct Transformer : Net {
  Transformer() {
    register_module("layer", layer);
    register_module("head", head);
  }
  Tensor forward(Tensor input, int) override {
    return head->forward(layer->forward(input.view({-1, 2, 8}).transpose(0, 1)).mean(0));
  }
  nn::TransformerEncoderLayer layer{nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0)};
  nn::Linear head{8, 4};
};

struct Case {
  std::string name;
  std::function<NetPtr()> make;
  ::at::ScalarType type = ::at::kFloat;
  ddp::Unused unused = ddp::Unused::error;
  int micro_batches = 1;
};

const std::vector<Case> kCases = {
    {"mlp", [] { return std::make_shared<Mlp>(); }},
    {"cnn with batch norm", [] { return std::make_shared<Cnn>(); }},
    {"rnn", [] { return std::make_shared<Rnn>(); }},
    {"tied weights", [] { return std::make_shared<Tied>(); }},
    {"unused branch, zeros", [] { return std::make_shared<Branch>(); }, ::at::kFloat, ddp::Unused::zeros},
    {"unused branch, keep", [] { return std::make_shared<Branch>(); }, ::at::kFloat, ddp::Unused::keep},
    {"frozen part", [] { return std::make_shared<Frozen>(); }},
    {"transformer", [] { return std::make_shared<Transformer>(); }},
    {"float64", [] { return std::make_shared<Mlp>(::at::kDouble); }, ::at::kDouble},
    {"no_sync", [] { return std::make_shared<Mlp>(); }, ::at::kFloat, ddp::Unused::error, 3},
};

Tensor input_of(const Case& what, int step, int micro_batch, int rank) {
  ::torch::manual_seed(1000 * step + 100 * micro_batch + rank);
  return ::torch::randn({kSamples, 16}, what.type);
}

Tensor loss_of(const Tensor& output) { return (output.square().sum(1) - 1).square().mean(); }

void copy_state(Net& from, Net& to, bool only_buffers) {
  ::torch::NoGradGuard guard;
  const auto copy = [](const auto& source, const auto& target) {
    for (const auto& entry : source) target.find(entry.key())->copy_(entry.value());
  };
  if (!only_buffers) copy(from.named_parameters(), to.named_parameters());
  copy(from.named_buffers(), to.named_buffers());
}

// What every rank should come to, all of it computed here.
std::vector<NetPtr> train_by_hand(const Case& what, Net& begin, int ranks) {
  std::vector<NetPtr> nets;
  std::vector<::torch::optim::SGD> optimizers;
  for (int rank = 0; rank < ranks; ++rank) {
    nets.push_back(what.make());
    copy_state(begin, *nets.back(), false);
    optimizers.emplace_back(nets.back()->parameters(), ::torch::optim::SGDOptions(0.05).momentum(0.9));
  }
  for (int step = 0; step < kSteps; ++step) {
    for (auto& optimizer : optimizers) optimizer.zero_grad();
    for (int batch = 0; batch < what.micro_batches; ++batch) {
      if (batch + 1 == what.micro_batches)
        for (int rank = 1; rank < ranks; ++rank) copy_state(*nets[0], *nets[rank], true);
      for (int rank = 0; rank < ranks; ++rank)
        loss_of(nets[rank]->forward(input_of(what, step, batch, rank), rank)).backward();
    }
    ::torch::NoGradGuard guard;
    std::vector<std::vector<Tensor>> all;
    for (const auto& net : nets) all.push_back(net->parameters());
    for (std::size_t i = 0; i < all[0].size(); ++i) {
      if (!all[0][i].requires_grad()) continue;
      Tensor sum = ::torch::zeros_like(all[0][i]);
      for (const auto& parameters : all)
        if (parameters[i].grad().defined()) sum += parameters[i].grad();
      sum /= ranks;
      for (auto& parameters : all) parameters[i].mutable_grad() = sum.clone();
    }
    for (auto& optimizer : optimizers) optimizer.step();
  }
  return nets;
}

double largest_difference(Net& a, Net& b) {
  double out = 0;
  const auto compare = [&out](const auto& left, const auto& right) {
    for (const auto& entry : left)
      out = std::max(out, (entry.value().to(::at::kDouble) - right.find(entry.key())->to(::at::kDouble))
                              .abs()
                              .max()
                              .template item<double>());
  };
  compare(a.named_parameters(), b.named_parameters());
  compare(a.named_buffers(), b.named_buffers());
  return out;
}

std::string check(const Case& what, const ddp::ProcessGroup& world) {
  ::torch::manual_seed(world.rank());  // ranks begin with different parameters: rank 0's count
  const NetPtr net = what.make();
  ::torch::manual_seed(0);
  const NetPtr begin = what.make();
  ddp::DistributedDataParallelOptions options;
  options.unused = what.unused;
  options.first_bucket_cap_bytes = options.bucket_cap_bytes = 1024;  // several buckets
  const ddp::torch::DistributedDataParallel model(world, net, options);
  ::torch::optim::SGD optimizer(net->parameters(), ::torch::optim::SGDOptions(0.05).momentum(0.9));
  const auto backward = [&](int step, int batch) {
    loss_of(model.forward(input_of(what, step, batch, world.rank()), world.rank())).backward();
  };
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad(step % 2 == 0);  // dropped, or set to zero
    for (int batch = 0; batch + 1 < what.micro_batches; ++batch) {
      const auto unsynced = model.no_sync();
      backward(step, batch);
    }
    backward(step, what.micro_batches - 1);
    optimizer.step();
  }
  const auto by_hand = train_by_hand(what, *begin, world.size());
  const double difference = largest_difference(*net, *by_hand[world.rank()]);
  const double limit = what.type == ::at::kDouble ? 1e-12 : 2e-5;
  if (difference > limit) return "differs by " + std::to_string(difference);
  return net->parameters()[0].grad().defined() || what.name == "frozen part" ? "ok" : "has no gradients";
}

// An error in backward on rank 1 is that step's: the others are told, and all train on.
std::string check_exception_in_backward(const ddp::ProcessGroup& world) {
  ::torch::manual_seed(0);
  const auto net = std::make_shared<Mlp>();
  ddp::torch::DistributedDataParallel model(world, net);
  const auto input = ::torch::ones({2, 16});
  for (int step = 0; step < 3; ++step) {
    const bool fails = step == 1 && world.rank() == 1;
    const auto handle = net->layers[0]->as<nn::Linear>()->weight.register_hook([fails](Tensor gradient) -> Tensor {
      if (fails) throw std::runtime_error("out of luck");  // when those of the last layer are ready
      return gradient;
    });
    std::string error;
    try {
      model.forward(input, world.rank()).sum().backward();
    } catch (const ddp::GradientError& told) {
      error = told.what();
    } catch (const std::runtime_error& own) {
      error = own.what();
    }
    net->layers[0]->as<nn::Linear>()->weight.remove_hook(handle);
    const std::string wanted = step != 1 ? "" : world.rank() == 1 ? "out of luck" : "rank 1";
    if (error.empty() != wanted.empty() || error.find(wanted) == std::string::npos)
      return "rank " + std::to_string(world.rank()) + ", step " + std::to_string(step) + ": " +
             (error.empty() ? "no error" : error);
  }
  return "ok";
}

std::string check_missing_gradient(const ddp::ProcessGroup& world) {
  const auto net = std::make_shared<Branch>();
  ddp::torch::DistributedDataParallel model(world, net);
  try {
    model.forward(::torch::ones({2, 16}), world.rank()).sum().backward();
  } catch (const ddp::GradientError& error) {
    const std::string text = error.what();
    return text.find("even.weight") != std::string::npos ? "ok" : text;
  }
  return "no error";
}

std::string check_other_type(const ddp::ProcessGroup& world) {
  const auto net = std::make_shared<Mlp>();
  net->register_buffer("strange", ::torch::ones({2}, ::at::kComplexFloat));
  try {
    const ddp::torch::DistributedDataParallel model(world, net);
  } catch (const ddp::InvalidArgument& error) {
    const std::string text = error.what();
    return text.find("strange is of type ComplexFloat") != std::string::npos ? "ok" : text;
  }
  return "no error";
}

// Saves after three steps; a second net that loads that comes to the same bits after two more.
std::string check_checkpoint(const ddp::ProcessGroup& world, const std::string& folder) {
  struct Run {
    Run(const ddp::ProcessGroup& world, const std::string& folder)
        : model(world, net), checkpoints(world, options_of(folder)) {
      checkpoints.add(ddp::torch::state_of(*net));
      checkpoints.add_text("optimizer", ddp::torch::text_of(optimizer));
    }
    static ddp::CheckpointerOptions options_of(const std::string& folder) {
      ddp::CheckpointerOptions options;
      options.directory = folder;
      options.form = ddp::CheckpointForm::single;
      return options;
    }
    void train(int from, int steps, int rank) {
      for (int step = from; step < from + steps; ++step) {
        optimizer.zero_grad();
        loss_of(model.forward(input_of(kCases[1], step, 0, rank), rank)).backward();
        optimizer.step();
      }
    }
    std::shared_ptr<Cnn> net = std::make_shared<Cnn>();
    ddp::torch::DistributedDataParallel<Cnn> model;
    ::torch::optim::SGD optimizer{net->parameters(), ::torch::optim::SGDOptions(0.05).momentum(0.9)};
    ddp::Checkpointer checkpoints;
  };
  Run first(world, folder), second(world, folder);
  first.train(0, 3, world.rank());
  first.model.broadcast_buffers();
  first.checkpoints.save(3);
  first.checkpoints.wait();
  first.train(3, 2, world.rank());
  const auto loaded = second.checkpoints.load();
  if (!loaded || loaded->step != 3) return "not loaded";
  second.train(3, 2, world.rank());
  const double difference = largest_difference(*first.net, *second.net);
  return difference == 0 ? "ok" : "differs by " + std::to_string(difference);
}

}  // namespace

int main(int, char** arguments) {
  ::torch::set_num_threads(1);
  const auto world = ddp::init_process_group();
  bool is_good = true;
  const auto print = [&](const std::string& name, const std::string& result) {
    std::cout << name + ": " + result + "\n" << std::flush;
    is_good = is_good && result == "ok";
  };
  for (const auto& what : kCases) print(what.name, check(what, world));
  print("exception in backward", check_exception_in_backward(world));
  print("missing gradient", check_missing_gradient(world));
  print("other type", check_other_type(world));
  print("checkpoint", check_checkpoint(world, arguments[1]));
  return is_good ? 0 : 1;
}
