// The training of tests/interop/engine_reference.py with libddp: starts from what PyTorch's DistributedDataParallel
// started from, and compares the parameters after step 20 and the last one.
//
//   engine_steps FOLDER [--gradients]
//
// For each case rank 0 prints a line with the largest difference. It ends with 1 if one is too large, or if FOLDER
// lacks a file. --gradients: each step of the cases bfloat16 and PowerSGD is compared, too, with what PyTorch's hook
// made of the same gradients.
#include <ddp/ddp.hpp>

#include "tests/integration/engine_batch_norm.hpp"
#include "tests/integration/engine_layers.hpp"
#include "tests/integration/engine_numbers.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int kSteps = 100, kRows = 8, kInputs = 24, kHidden = 32, kOutputs = 8;
constexpr float kRate = 0.05F;
constexpr int kExactSteps = 2;  // of PowerSGD

using ddp::test::Floats;
using ddp::test::has_same_bits;
using ddp::test::largest_difference;
using ddp::test::Layer;
using ddp::test::Matrix;
using ddp::test::numbers;
using ddp::test::read_floats;
using ddp::test::softsign;
using ddp::test::through_softsign;

// A bfloat16 is the upper half of a float32. To nearest even; of finite numbers.
std::uint16_t to_bfloat16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float to_float(std::uint16_t bfloat16) {
  const std::uint32_t bits = std::uint32_t{bfloat16} << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

enum Name : std::size_t { first, middle, last, extra };  // parameters 2 * name (weight) and 2 * name + 1 (bias)

// Computes in float32. Its parameters and gradients may be bfloat16.
class Network {
 public:
  Network(const Floats& initial, bool is_half) {
    const std::array<std::pair<int, int>, 4> shapes{
        {{kHidden, kInputs}, {kHidden, kHidden}, {kOutputs, kHidden}, {kOutputs, kHidden}}};
    const char* const names[] = {"first", "middle", "last", "extra"};
    auto next = initial.begin();
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const auto [rows, columns] = shapes[i];
      values_.emplace_back(next, next + rows * columns);
      next += rows * columns;
      values_.emplace_back(next, next + rows);
      next += rows;
      names_.push_back(names[i]);
      shapes_.push_back({rows, columns});
    }
    if (!is_half) return;
    for (const Floats& each : values_) {
      halves_.emplace_back(each.size());
      std::transform(each.begin(), each.end(), halves_.back().begin(), to_bfloat16);
    }
    begin();
  }

  std::vector<ddp::Parameter> parameters() {
    std::vector<ddp::Parameter> all;
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      all.push_back({names_[i] + "_weight", {shapes_[i].first, shapes_[i].second}, range(2 * i)});
      all.push_back({names_[i] + "_bias", {shapes_[i].first}, range(2 * i + 1)});
    }
    return all;
  }

  // Widens the parameters.
  void begin() {
    of_halves_.resize(halves_.size());
    for (std::size_t p = 0; p < halves_.size(); ++p) {
      std::transform(halves_[p].begin(), halves_[p].end(), values_[p].begin(), to_float);
      of_halves_[p].assign(values_[p].size(), 0);
    }
  }

  // Rounds the gradient.
  void end(std::size_t p, const ddp::DistributedDataParallel& model) const {
    if (halves_.empty()) return;
    auto* const to = static_cast<std::uint16_t*>(model.gradient(p).data);
    std::transform(of_halves_[p].begin(), of_halves_[p].end(), to, to_bfloat16);
  }

  Layer layer(Name name, const ddp::DistributedDataParallel& model) {
    const auto gradient = [&](std::size_t p) {
      return halves_.empty() ? model.gradient<float>(p).data() : of_halves_[p].data();
    };
    return {values_[2 * name].data(), values_[2 * name + 1].data(), gradient(2 * name),
            gradient(2 * name + 1),   shapes_[name].first,          shapes_[name].second};
  }

  void descend(const ddp::DistributedDataParallel& model) {
    for (std::size_t p = 0; p < values_.size(); ++p) {
      const auto* const gradient = static_cast<const float*>(model.gradient(p).data);
      for (std::size_t i = 0; i < values_[p].size(); ++i) values_[p][i] -= kRate * gradient[i];
    }
  }

  // The parameters of the layer `extra`.
  Floats of_extra() const {
    Floats both = values_[2 * extra];
    both.insert(both.end(), values_[2 * extra + 1].begin(), values_[2 * extra + 1].end());
    return both;
  }

  Floats all() const {
    Floats all;
    for (const Floats& each : values_) all.insert(all.end(), each.begin(), each.end());
    return all;
  }

 private:
  ddp::MemoryRange range(std::size_t p) {
    if (halves_.empty()) return values_[p];
    return {halves_[p].data(), halves_[p].size(), ddp::DataType::bfloat16};
  }

  std::vector<Floats> values_;                      // by parameter
  std::vector<std::vector<std::uint16_t>> halves_;  // the parameters as bfloat16; empty if they are float32
  std::vector<Floats> of_halves_;                   // their gradients before they are rounded
  std::vector<std::string> names_;
  std::vector<std::pair<int, int>> shapes_;
};

// Limits are about three times the largest differences that were seen; docs/gradient_engine.md has both.
constexpr double kAdamwDifferenceMax = 1e-6;

struct Case {
  std::string name;
  double difference_max = 2e-7;  // of parameters around 0.1: some roundings of float32
  bool compares_last = true;
  ddp::DistributedDataParallelOptions options{};
  int middles = 1;
  int micro_batches = 1;
  std::function<bool(int rank, int step)> has_extra = [](int, int) { return true; };
  int steps_of_rank_1 = kSteps;
  bool leaves_extra = false;  // where no rank has it: the optimizer skips that layer
  std::optional<ddp::ParameterAverageOptions> average{};
  std::optional<ddp::Sharding> sharding{};  // of AdamW, in place of plain descent
  bool is_half = false;
  std::string file = name;  // of what PyTorch came to
};

// Forward and backward of one batch.
void add_gradients(Network& network, const ddp::DistributedDataParallel& model, const Case& its, int rank, int number,
                   bool has_extra, const std::function<void(Name)>& is_ready) {
  const Matrix x(kRows, kInputs, numbers(kRows * kInputs, 2 * (1000 * rank + number)));
  const Matrix y(kRows, kOutputs, numbers(kRows * kOutputs, 2 * (1000 * rank + number) + 1));
  std::vector<Matrix> hidden{x}, before;
  const auto name_of = [](std::size_t i) { return i == 0 ? first : middle; };
  for (std::size_t i = 0; i <= static_cast<std::size_t>(its.middles); ++i) {
    before.push_back(network.layer(name_of(i), model).forward(hidden.back()));
    hidden.push_back(softsign(before.back()));
  }
  Matrix out = network.layer(last, model).forward(hidden.back());
  if (has_extra) {
    const Matrix more = network.layer(extra, model).forward(hidden.back());
    for (std::size_t i = 0; i < out.values.size(); ++i) out.values[i] += more.values[i];
  }
  for (std::size_t i = 0; i < out.values.size(); ++i) {
    out.values[i] = 2 * (out.values[i] - y.values[i]) / static_cast<float>(out.values.size());
  }
  Matrix gradient = network.layer(last, model).backward(hidden.back(), out);
  if (has_extra) {
    const Matrix more = network.layer(extra, model).backward(hidden.back(), out);
    for (std::size_t i = 0; i < gradient.values.size(); ++i) gradient.values[i] += more.values[i];
    is_ready(extra);
  }
  is_ready(last);
  for (std::size_t i = before.size(); i-- > 0;) {
    gradient = network.layer(name_of(i), model).backward(hidden[i], through_softsign(before[i], gradient));
    is_ready(name_of(i));
  }
}

// Collective: the float32 master weights of all ranks, as Network::all() has the parameters.
Floats masters_of(ddp::ProcessGroup& world, ddp::ShardedOptimizer& optimizer,
                  const std::vector<ddp::Parameter>& parameters) {
  std::map<std::string, std::size_t> offsets;
  std::size_t count = 0;
  for (const ddp::Parameter& each : parameters) {
    offsets["optimizer." + each.name + ".master"] = count;
    count += each.values.count;
  }
  Floats all(count);
  for (const auto& shard : optimizer.shards()) {
    const auto offset = offsets.find(shard.name);
    if (offset == offsets.end()) continue;
    std::copy_n(static_cast<const float*>(shard.values.data), shard.values.count,
                all.begin() + static_cast<std::ptrdiff_t>(offset->second + shard.first));
  }
  if (optimizer.sharding() != ddp::Sharding::none) world.all_reduce(all);
  return all;
}

// Returns the largest difference from what PyTorch came to, on rank 0; else 0.
double run(ddp::ProcessGroup& world, const std::string& folder, const Case& its) {
  const Floats wanted = read_floats(folder + "/" + its.file + ".f32");
  Network network(read_floats(folder + "/initial.f32"), its.is_half);
  std::optional<ddp::ShardedOptimizer> optimizer;
  ddp::DistributedDataParallelOptions options = its.options;
  if (its.sharding) {
    const ddp::AdamWOptions adamw{.learning_rate = 0.01, .weight_decay = 0.1};
    optimizer.emplace(world, network.parameters(), adamw, *its.sharding);
    optimizer->prepare(options);
  }
  ddp::DistributedDataParallel model(world, network.parameters(), options);
  std::optional<ddp::ParameterAverage> average;
  if (its.average) average.emplace(std::vector<ddp::AverageLevel>{{world, 4}}, network.parameters(), *its.average);
  double largest = 0;
  int step = 0;
  const auto end_step = [&] {
    if (optimizer) {
      const Floats before = network.of_extra();
      optimizer->step();
      optimizer->wait();
      network.begin();
      const bool is_left = its.leaves_extra && !its.has_extra(world.rank(), step);
      if (is_left && !has_same_bits(network.of_extra(), before)) {
        throw std::runtime_error(its.name + ": the optimizer changed a layer that no rank used");
      }
    } else {
      network.descend(model);
    }
    if (average) average->step();
    const bool is_compared = ++step == 20 || (step == kSteps && its.compares_last);
    if (!is_compared) return;
    const Floats all = its.is_half ? masters_of(world, *optimizer, network.parameters()) : network.all();
    if (world.rank() != 0) return;
    const std::size_t offset = step == 20 ? 0 : all.size();
    if (wanted.size() < offset + all.size()) throw std::runtime_error(its.name + ".f32 is too short");
    largest = std::max(largest, largest_difference(all, wanted.data() + offset));
  };
  const int steps = world.rank() == 1 ? its.steps_of_rank_1 : kSteps;
  while (step < steps) {
    for (int k = 0; k < its.micro_batches; ++k) {
      auto micro_batch = model.begin_step(k + 1 == its.micro_batches ? ddp::Sync::on : ddp::Sync::off);
      add_gradients(network, model, its, world.rank(), step * its.micro_batches + k, its.has_extra(world.rank(), step),
                    [&](Name name) {
                      for (const std::size_t p : {2 * name, 2 * name + 1}) network.end(p, model), micro_batch.ready(p);
                    });
      micro_batch.finish();
    }
    end_step();
  }
  if (its.options.uneven_inputs != ddp::UnevenInputs::off) model.join(end_step);
  return largest;
}

// A step in which no rank uses the layer `extra` leaves the bits of its gradients: those that PyTorch left.
void expect_unused_gradients_stay(ddp::ProcessGroup& world, const std::string& folder) {
  Network network(read_floats(folder + "/initial.f32"), false);
  ddp::DistributedDataParallelOptions options;
  options.unused = ddp::Unused::keep;
  options.zero_gradients = false;
  ddp::DistributedDataParallel model(world, network.parameters(), options);
  Floats before;
  for (const std::size_t p : {2 * extra, 2 * extra + 1}) {
    const auto gradient = model.gradient<float>(p);
    const auto seed = static_cast<std::int64_t>(9000 + 2 * static_cast<std::size_t>(world.rank()) + p % 2);
    const Floats values = numbers(static_cast<std::int64_t>(gradient.size()), seed);
    std::copy(values.begin(), values.end(), gradient.begin());
    before.insert(before.end(), values.begin(), values.end());
  }
  auto step = model.begin_step();
  const Case plain{.name = "plain"};
  add_gradients(network, model, plain, world.rank(), kSteps, false, [&](Name name) {
    for (const std::size_t p : {2 * name, 2 * name + 1}) step.ready(p);
  });
  step.finish();
  Floats after;
  for (const std::size_t p : {2 * extra, 2 * extra + 1}) {
    const auto gradient = model.gradient<float>(p);
    after.insert(after.end(), gradient.begin(), gradient.end());
  }
  const bool is_pytorchs =
      world.rank() != 0 || has_same_bits(after, read_floats(folder + "/unused_everywhere.gradient.f32"));
  if (!has_same_bits(after, before) || !is_pytorchs) {
    throw std::runtime_error("a gradient that no rank used has other bits after the step");
  }
}

// PyTorch draws its first q otherwise.
std::shared_ptr<ddp::CommunicationHook> power_sgd_from(const std::string& folder, const std::string& name, int rank) {
  struct WithFirstQ : ddp::CommunicationHook {
    std::string describe() const override { return hook->describe(); }
    void begin(ddp::ProcessGroup& group, const std::vector<ddp::GradientBucket>& buckets,
               ddp::CollectiveOptions options) override {
      hook->begin(group, buckets, options);
      auto next = first_q.begin();
      for (const char* const layer : {"first", "middle", "last", "extra"}) {
        for (const ddp::Parameter& each : hook->state()) {
          if (each.name != "power_sgd." + std::string(layer) + "_weight.q") continue;
          std::copy_n(next, each.values.count, static_cast<float*>(each.values.data));
          next += static_cast<std::ptrdiff_t>(each.values.count);
        }
      }
      if (next != first_q.end()) throw std::runtime_error("other parameters are compressed");
    }
    std::optional<ddp::Work> next(const ddp::HookCall& call) override { return hook->next(call); }
    std::vector<ddp::Parameter> state() override { return hook->state(); }

    std::shared_ptr<ddp::CommunicationHook> hook;
    Floats first_q;
  };
  auto hook = std::make_shared<WithFirstQ>();
  hook->hook = ddp::power_sgd({.rank = rank, .start_step = kExactSteps});
  hook->first_q = read_floats(folder + "/" + name + ".q.f32");
  return hook;
}

// Gives PowerSGD the state that PyTorch's had before a step. Returns the largest difference of what it had itself.
double take_state(ddp::CommunicationHook& hook, const Floats& states, int step) {
  double largest = 0;
  const float* next = states.data() + states.size() / kSteps * static_cast<std::size_t>(step);
  for (const char* const layer : {"first", "middle", "last", "extra"}) {
    for (const char* const part : {".error", ".q"}) {
      for (const ddp::Parameter& each : hook.state()) {
        if (each.name != "power_sgd." + std::string(layer) + "_weight" + part) continue;
        const auto own = each.values.as<float>();
        largest = std::max(largest, largest_difference({own.begin(), own.end()}, next));
        std::copy_n(next, own.size(), own.begin());
        next += own.size();
      }
    }
  }
  return largest;
}

// Gives the hook the gradients that PyTorch's ranks had in each step, and PowerSGD the state, too: it adds what it lost
// to the next step's gradient, so a rounding grows from step to step even if the gradients are the same. Returns the
// largest difference of what the hook makes of them, on any rank.
double difference_of_hook(ddp::ProcessGroup& world, const std::string& folder, const std::string& name,
                          const std::shared_ptr<ddp::CommunicationHook>& hook) {
  const bool has_state = !hook->state().empty();
  Floats states;
  if (has_state) states = read_floats(folder + "/" + name + ".states." + std::to_string(world.rank()) + ".f32");
  const Floats given = read_floats(folder + "/" + name + ".gradients." + std::to_string(world.rank()) + ".f32");
  const Floats wanted = read_floats(folder + "/" + name + ".means.f32");
  Network network(read_floats(folder + "/initial.f32"), false);
  ddp::DistributedDataParallelOptions options;
  options.communication_hook = hook;
  ddp::DistributedDataParallel model(world, network.parameters(), options);
  const std::size_t count = network.all().size();
  if (given.size() != kSteps * count || wanted.size() != given.size()) throw std::runtime_error(name + ": other steps");
  double largest = 0;
  for (int i = 0; i < kSteps; ++i) {
    const std::size_t first = static_cast<std::size_t>(i) * count;
    if (has_state && i > kExactSteps) largest = std::max(largest, take_state(*hook, states, i));
    auto step = model.begin_step();
    const float* next = given.data() + first;
    for (std::size_t p = 0; p < model.parameter_count(); ++p) {
      const auto gradient = model.gradient<float>(p);
      std::copy_n(next, gradient.size(), gradient.begin());
      next += gradient.size();
      step.ready(p);
    }
    step.finish();
    Floats means;
    for (std::size_t p = 0; p < model.parameter_count(); ++p) {
      const auto gradient = model.gradient<float>(p);
      means.insert(means.end(), gradient.begin(), gradient.end());
    }
    largest = std::max(largest, largest_difference(means, wanted.data() + first));
  }
  return ddp::all_reduce(world, largest, ddp::ReduceOp::max);
}

std::vector<Case> cases(const std::string& folder) {
  std::vector<Case> all{{.name = "plain"}, {.name = "accumulation", .micro_batches = 3}};
  all.push_back({.name = "unused", .has_extra = [](int rank, int step) { return (step + rank) % 3 != 0; }});
  all.back().options.unused = ddp::Unused::zeros;
  for (const auto sharding : {ddp::Sharding::none, ddp::Sharding::optimizer, ddp::Sharding::gradients}) {
    all.push_back({.name = std::array{"unused_everywhere", "unused_everywhere_zero_1",
                                      "unused_everywhere_zero_2"}[static_cast<std::size_t>(sharding)],
                   .difference_max = kAdamwDifferenceMax,
                   .has_extra = [](int, int step) { return step % 3 != 0; },
                   .leaves_extra = true,
                   .sharding = sharding,
                   .file = "unused_everywhere"});
    all.back().options.unused = ddp::Unused::keep;
  }
  all.push_back({.name = "static_graph", .middles = 2});
  all.back().options.static_graph = true;
  // Each side rounds gradients of its own. Where two of them differ in the last bit of float32 and have a number that
  // bfloat16 rounds half up between them, they become neighbours of bfloat16: 1/128 of a gradient of 0.05 apart, which
  // is 1e-5 of a parameter. So float32's rounding does not bound this one; --gradients compares the hook bit by bit.
  all.push_back({.name = "bfloat16", .difference_max = 1.2e-5});
  all.back().options.communication_hook = ddp::compressed_all_reduce();
  all.push_back({.name = "uneven_inputs", .steps_of_rank_1 = 60});
  all.back().options.uneven_inputs = ddp::UnevenInputs::divide_by_all;
  for (const int rank : {1, 2}) {
    const std::string name = "power_sgd_" + std::to_string(rank);
    // Then roundings grow: PyTorch's own algorithm comes to 2e-3 after 100 steps if it adds in another order.
    // --gradients compares each of the 100 steps.
    all.push_back({.name = name, .difference_max = 4e-7, .compares_last = false});
    all.back().options.communication_hook = power_sgd_from(folder, name, rank);
  }
  all.push_back({.name = "local_sgd", .average = ddp::ParameterAverageOptions{.start_step = 10}});
  all.back().options.communication_hook = ddp::post_local_sgd({.start_step = 10});
  for (const auto sharding : {ddp::Sharding::none, ddp::Sharding::optimizer, ddp::Sharding::gradients}) {
    const std::string name = std::array{"adamw", "zero_1", "zero_2"}[static_cast<std::size_t>(sharding)];
    all.push_back({.name = name, .difference_max = kAdamwDifferenceMax, .sharding = sharding, .file = "zero"});
    // Where a sum differs in its last bit, the gradient may be rounded to the other neighbour. After 100 steps the
    // difference is 1.3e-3.
    all.push_back({.name = name + "_master_weights",
                   .difference_max = 9e-5,
                   .compares_last = false,
                   .sharding = sharding,
                   .is_half = true,
                   .file = "master_weights"});
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  const bool has_gradients = argc == 3 && std::string(argv[2]) == "--gradients";
  if (argc != 2 && !has_gradients) {
    std::fprintf(stderr, "usage: engine_steps FOLDER [--gradients]\n");
    return 2;
  }
  try {
    auto world = ddp::init_process_group();
    bool is_right = true;
    const auto is_close = [&](const char* name, double largest, double difference_max) {
      if (world.rank() == 0) std::printf("%s: largest difference %.2g, at most %.2g\n", name, largest, difference_max);
      is_right = is_right && largest <= difference_max;
    };
    for (const Case& its : cases(argv[1])) is_close(its.name.c_str(), run(world, argv[1], its), its.difference_max);
    expect_unused_gradients_stay(world, argv[1]);
    if (has_gradients) {
      const std::string folder = argv[1];
      // The same rounding to bfloat16, and sums of two numbers: the same bits.
      const auto compressed = ddp::compressed_all_reduce();
      is_close("bfloat16 step for step", difference_of_hook(world, folder, "bfloat16", compressed), 0);
      for (const int rank : {1, 2}) {
        const std::string name = "power_sgd_" + std::to_string(rank);
        const auto hook = power_sgd_from(folder, name, rank);
        is_close((name + " step for step").c_str(), difference_of_hook(world, folder, name, hook), 6e-8);
      }
    }
    is_close("batch_norm", ddp::test::batch_norm_difference(world, argv[1]), 2e-6);
    is_close("batch_norm_training", ddp::test::batch_norm_training_difference(world, argv[1]), 2e-6);
    world.barrier();
    return is_right ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
