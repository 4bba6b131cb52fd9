#include "ddp/sharded_optimizer.hpp"

#include "ddp/error.hpp"
#include "ddp/gradient_scaling.hpp"
#include "tests/unit/worker_runtime/copy_state.hpp"
#include "tests/unit/worker_runtime/rank_results.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <variant>
#include <vector>

namespace ddp {
namespace {

using test::results_of_ranks;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

using OptimizerOptions = std::variant<AdamWOptions, SgdOptions>;

// Tensors of sizes that divide by nothing, in several buckets.
struct Tensors {
  std::vector<std::vector<float>> values{std::vector<float>(1000), std::vector<float>(7), std::vector<float>(333),
                                         std::vector<float>(1)};

  Tensors() {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (auto& of_one : values) {
      for (float& each : of_one) each = uniform(random);
    }
  }

  std::vector<Parameter> parameters() {
    std::vector<Parameter> all;
    for (std::size_t p = 0; p < values.size(); ++p) {
      all.push_back({"p" + std::to_string(p), {static_cast<std::int64_t>(values[p].size())}, values[p]});
    }
    return all;
  }

  std::string bits() const {
    std::ostringstream text;
    for (const auto& of_one : values) {
      for (const float each : of_one) text << std::hexfloat << each << " ";
    }
    return text.str();
  }
};

void train_step(DistributedDataParallel& model, ShardedOptimizer& optimizer, int rank, int step,
                const std::vector<std::size_t>& order = {3, 2, 1, 0}) {
  std::mt19937 random(static_cast<unsigned>(100 * step + rank));
  std::uniform_real_distribution<float> uniform(-1, 1);
  optimizer.wait();
  auto open = model.begin_step();
  for (const std::size_t p : order) {
    auto* const gradient = model.gradient<float>(p).data();
    for (std::size_t i = 0; i < model.gradient(p).count; ++i) gradient[i] += uniform(random);
    open.ready(p);
  }
  open.finish();
}

DistributedDataParallelOptions small_buckets(ShardedOptimizer& optimizer) {
  DistributedDataParallelOptions options;
  options.first_bucket_cap_bytes = options.bucket_cap_bytes = 1000;
  optimizer.prepare(options);
  return options;
}

// The parameters' bits after some steps.
std::string train(ProcessGroup& world, const OptimizerOptions& options, Sharding sharding, int steps,
                  bool rebuilds = false, double norm_max = 0) {
  Tensors tensors;
  ShardedOptimizer optimizer(world, tensors.parameters(), options, sharding);
  DistributedDataParallel model(world, tensors.parameters(), small_buckets(optimizer));
  for (int i = 0; i < steps; ++i) {
    train_step(model, optimizer, world.rank(), i);
    if (norm_max > 0) {
      EXPECT_GT(optimizer.clip_gradients_by_norm(norm_max), norm_max);
    }
    optimizer.step();
    if (rebuilds && i == steps / 2) {
      optimizer.wait();
      train_step(model, optimizer, world.rank(), 1000, {1, 3, 0, 2});
      optimizer.step();
      model.rebuild_buckets();
    }
  }
  optimizer.wait();
  return tensors.bits();
}

TEST(ShardedOptimizer, ParametersHaveTheSameBitsAsWithoutSharding) {
  const OptimizerOptions all[] = {AdamWOptions{.learning_rate = 0.01}, SgdOptions{.learning_rate = 0.1},
                                  SgdOptions{.momentum = 0.9, .weight_decay = 0.1},
                                  SgdOptions{.momentum = 0.9, .nesterov = true}};
  for (const OptimizerOptions& options : all) {
    const auto results = results_of_ranks(3, [&](ProcessGroup world) -> std::string {
      const std::string whole = train(world, options, Sharding::none, 10);
      if (train(world, options, Sharding::optimizer, 10) != whole) return "stage 1 differs";
      if (train(world, options, Sharding::gradients, 10) != whole) return "stage 2 differs";
      return whole;
    });
    EXPECT_EQ(results[0].size() > 1000, true) << results[0];
    EXPECT_THAT(results, Each(results[0]));
  }
}

TEST(ShardedOptimizer, StateGoesToTheNewOwnersWhenBucketsAreRebuilt) {
  const auto results = results_of_ranks(3, [](ProcessGroup world) -> std::string {
    const AdamWOptions options{.learning_rate = 0.01};
    const std::string whole = train(world, options, Sharding::none, 10, true);
    if (train(world, options, Sharding::optimizer, 10, true) != whole) return "stage 1 differs";
    return train(world, options, Sharding::gradients, 10, true) == whole ? "" : "stage 2 differs";
  });
  EXPECT_THAT(results, Each(""));
}

TEST(ShardedOptimizer, AdamWIsThatOfTheFormula) {
  const auto results = results_of_ranks(1, [](ProcessGroup world) {
    std::vector<float> p{2};
    const std::vector<Parameter> parameters{{"p", {1}, p}};
    ShardedOptimizer optimizer(world, parameters,
                               AdamWOptions{.learning_rate = 0.1, .beta1 = 0.5, .beta2 = 0.75, .weight_decay = 0.5},
                               Sharding::gradients);
    DistributedDataParallel model(world, parameters, small_buckets(optimizer));
    double want = 2, m = 0, v = 0;
    for (int t = 1; t <= 3; ++t) {
      auto step = model.begin_step();
      *model.gradient<float>(0).data() = static_cast<float>(t);
      step.ready(0);
      step.finish();
      optimizer.step();
      optimizer.wait();
      want *= 1 - 0.1 * 0.5;
      m = 0.5 * m + 0.5 * t;
      v = 0.75 * v + 0.25 * t * t;
      want -= 0.1 / (1 - std::pow(0.5, t)) * m / (std::sqrt(v) / std::sqrt(1 - std::pow(0.75, t)) + 1e-8);
      EXPECT_NEAR(p[0], want, 1e-6);
    }
    return "";
  });
  EXPECT_THAT(results, Each(""));
}

TEST(ShardedOptimizer, SgdIsThatOfTheFormula) {
  for (const bool is_nesterov : {false, true}) {
    const auto results = results_of_ranks(1, [is_nesterov](ProcessGroup world) {
      std::vector<float> p{2};
      const std::vector<Parameter> parameters{{"p", {1}, p}};
      ShardedOptimizer optimizer(
          world, parameters,
          SgdOptions{.learning_rate = 0.5, .momentum = 0.5, .weight_decay = 0.25, .nesterov = is_nesterov},
          Sharding::optimizer);
      DistributedDataParallel model(world, parameters, small_buckets(optimizer));
      double want = 2, m = 0;
      for (int t = 1; t <= 3; ++t) {
        auto step = model.begin_step();
        *model.gradient<float>(0).data() = static_cast<float>(t);
        step.ready(0);
        step.finish();
        if (t == 3) optimizer.set_learning_rate(0.125);
        optimizer.step();
        optimizer.wait(0);
        const double g = t + 0.25 * want;
        m = t == 1 ? g : 0.5 * m + g;
        want -= (t == 3 ? 0.125 : 0.5) * (is_nesterov ? g + 0.5 * m : m);
        EXPECT_NEAR(p[0], want, 1e-6);
      }
      return "";
    });
    EXPECT_THAT(results, Each(""));
  }
}

// One element on each of two ranks, with gradients 3 and 4: the norm is 5 where the gradients are whole.
TEST(ShardedOptimizer, ClippingIsForOneStepAndByTheWholeNorm) {
  for (const auto sharding : {Sharding::none, Sharding::optimizer, Sharding::gradients}) {
    const auto results = results_of_ranks(2, [sharding](ProcessGroup world) {
      std::vector<float> first{0}, second{0};
      const std::vector<Parameter> parameters{{"first", {1}, first}, {"second", {1}, second}};
      ShardedOptimizer optimizer(world, parameters, SgdOptions{.learning_rate = 1}, sharding);
      DistributedDataParallelOptions options;  // one bucket: each parameter is of another rank
      optimizer.prepare(options);
      DistributedDataParallel model(world, parameters, options);
      std::string text;
      const auto train = [&](double norm_max, bool has_step) {
        auto step = model.begin_step();
        *model.gradient<float>(0).data() = 3;
        *model.gradient<float>(1).data() = 4;
        step.ready(1);
        step.ready(0);
        step.finish();
        if (norm_max > 0) text += std::to_string(static_cast<int>(optimizer.clip_gradients_by_norm(norm_max))) + " ";
        if (!has_step) return;
        optimizer.step();
        optimizer.wait();
        text += std::to_string(std::lround(first[0] * 10)) + "," + std::to_string(std::lround(second[0] * 10)) + " ";
      };
      train(0.5, true);   // a tenth
      train(0.5, false);  // left out
      train(9, true);     // not clipped
      train(0, true);
      return text;
    });
    EXPECT_THAT(results, Each("5 -3,-4 5 5 -33,-44 -63,-84 "));
  }
}

TEST(ShardedOptimizer, AParameterThatWasSkippedForLongBeginsWithItsFirstStep) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    std::vector<float> p{0};
    const std::vector<Parameter> parameters{{"p", {1}, p}};
    ShardedOptimizer optimizer(world, parameters, AdamWOptions{.learning_rate = 0.5, .weight_decay = 0},
                               Sharding::optimizer);
    DistributedDataParallel model(world, parameters, small_buckets(optimizer));
    optimizer.set_skipped(0, true);
    for (int i = 0; i < 1001; ++i) {
      if (i == 1000) optimizer.set_skipped(0, false);
      auto step = model.begin_step();
      *model.gradient<float>(0).data() = 7;
      step.ready(0);
      step.finish();
      optimizer.step();
    }
    optimizer.wait();
    return std::to_string(std::lround(p[0] * 1000));
  });
  EXPECT_THAT(results, Each("-500")) << "AdamW's first step is the learning rate";
}

TEST(ShardedOptimizer, OptionsThatDifferAreAMismatch) {
  const OptimizerOptions others[] = {SgdOptions{.momentum = 0.9}, SgdOptions{.learning_rate = 0.0100001}};
  for (const OptimizerOptions& other : others) {
    const auto results = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
      Tensors tensors;
      const OptimizerOptions own = world.rank() == 0 ? SgdOptions{} : other;
      ShardedOptimizer optimizer(world, tensors.parameters(), own, Sharding::none);
      try {
        DistributedDataParallel(world, tensors.parameters(), small_buckets(optimizer));
      } catch (const MismatchError&) {
        return "mismatch";
      }
      return "no error";
    });
    EXPECT_THAT(results, Each("mismatch"));
  }
}

// The last rank comes late to the step whose parameters the others wait for.
TEST(ShardedOptimizer, ItsEndWaitsForParametersThatAreStillSent) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    std::vector<float> values(1 << 18, 1);
    {
      const std::vector<Parameter> parameters{{"values", {1 << 18}, values}};
      ShardedOptimizer optimizer(world, parameters, SgdOptions{.learning_rate = 1}, Sharding::optimizer);
      DistributedDataParallel model(world, parameters, small_buckets(optimizer));
      train_step(model, optimizer, world.rank(), 0, {0});
      if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));  // not needed for it to pass
      optimizer.step();
    }
    const bool is_updated = values.front() != 1 && values.back() != 1;  // the parts of both ranks
    world.barrier();
    return is_updated ? "" : "not all has come";
  });
  EXPECT_THAT(results, Each(""));
}

TEST(ShardedOptimizer, WhatWorksOnWholeGradientsIsRefused) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    Tensors tensors;
    ShardedOptimizer optimizer(world, tensors.parameters(), AdamWOptions{}, Sharding::optimizer);
    DistributedDataParallel model(world, tensors.parameters(), small_buckets(optimizer));
    EXPECT_THROW(static_cast<void>(gradient_norm(model)), InvalidArgument);
    LossScaler scaler(world);
    EXPECT_THROW(static_cast<void>(scaler.unscale(model)), InvalidArgument);
    ProcessGroup other = world.split(0);
    ShardedOptimizer of_other(other, tensors.parameters(), AdamWOptions{}, Sharding::optimizer);
    std::string text;
    try {
      DistributedDataParallel(world, tensors.parameters(), small_buckets(of_other));
    } catch (const InvalidArgument& error) {
      text = error.what();
    }
    return text;
  });
  EXPECT_THAT(results, Each(HasSubstr("the model has another group than the optimizer")));
}

TEST(ShardedOptimizer, ClipsByTheNormOfAllGradients) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) -> std::string {
    const SgdOptions options{.learning_rate = 0.1};
    const std::string clipped = train(world, options, Sharding::optimizer, 5, false, 0.5);
    if (clipped == train(world, options, Sharding::optimizer, 5)) return "not clipped";
    return train(world, options, Sharding::gradients, 5, false, 0.5) == clipped ? "" : "stage 2 differs";
  });
  EXPECT_THAT(results, Each(""));
}

TEST(ShardedOptimizer, SkippedAndFrozenParametersStayAsTheyAre) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    Tensors tensors;
    ShardedOptimizer optimizer(world, tensors.parameters(), AdamWOptions{}, Sharding::optimizer);
    DistributedDataParallel model(world, tensors.parameters(), small_buckets(optimizer));
    const auto first = tensors.values;
    optimizer.set_skipped(1, true);
    for (int i = 0; i < 3; ++i) {
      model.set_frozen(0, true);
      train_step(model, optimizer, world.rank(), i, {3, 2, 1});
      optimizer.step();
    }
    optimizer.wait();
    std::string text;
    for (std::size_t p = 0; p < 4; ++p) text += tensors.values[p] == first[p] ? "=" : "-";
    return text;
  });
  // Parameter 0 has a bucket of its own, which is reduced once more, with zeros, before all ranks know it to be frozen:
  // AdamW's weight decay would change it.
  EXPECT_THAT(results, Each(AllOf(::testing::EndsWith("=--"), ::testing::SizeIs(4))));
}

std::vector<Parameter> state_of(ShardedOptimizer& optimizer) {
  std::vector<Parameter> state{optimizer.steps()};
  for (const auto& shard : optimizer.shards()) {
    state.push_back({shard.name + "." + std::to_string(shard.first), shard.shape, shard.values});
  }
  return state;
}

TEST(ShardedOptimizer, GoesOnFromItsState) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) -> std::string {
    const AdamWOptions options{.learning_rate = 0.01};
    Tensors tensors, later_tensors;
    ShardedOptimizer optimizer(world, tensors.parameters(), options, Sharding::gradients);
    DistributedDataParallel model(world, tensors.parameters(), small_buckets(optimizer));
    for (int i = 0; i < 4; ++i) train_step(model, optimizer, world.rank(), i), optimizer.step();
    optimizer.wait();
    later_tensors.values = tensors.values;
    ShardedOptimizer later(world, later_tensors.parameters(), options, Sharding::gradients);
    DistributedDataParallel later_model(world, later_tensors.parameters(), small_buckets(later));
    const std::string different = test::copy_state(state_of(optimizer), state_of(later));
    if (!different.empty()) return "another state: " + different;
    std::size_t elements = 0;
    for (const Parameter& each : state_of(optimizer)) elements += each.values.count;
    train_step(model, optimizer, world.rank(), 9), optimizer.step(), optimizer.wait();
    train_step(later_model, later, world.rank(), 9), later.step(), later.wait();
    return (tensors.bits() == later_tensors.bits() ? "same, " : "different, ") +
           std::to_string(elements < 1400 ? 1 : 0);
  });
  EXPECT_THAT(results, Each("same, 1")) << "and each rank has about half of 2 * 1341 numbers";
}

// Pages of the range that take up memory.
std::size_t resident_pages(const MemoryRange& range) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(range.data) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(range.data) + range.bytes()) / page * page;
  std::vector<unsigned char> pages((end - begin) / page);
  if (::mincore(reinterpret_cast<void*>(begin), end - begin, pages.data()) != 0) return SIZE_MAX;
  return static_cast<std::size_t>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char each) { return (each & 1) != 0; }));
}

// A model of one parameter: how many pages its gradient takes when it is made and after each step, and whether it is
// zero.
std::vector<std::string> gradient_after_steps(std::size_t elements) {
  return results_of_ranks(2, [elements](ProcessGroup world) {
    std::vector<float> values(elements);
    const std::vector<Parameter> parameters{{"values", {static_cast<std::int64_t>(elements)}, values}};
    ShardedOptimizer optimizer(world, parameters, SgdOptions{}, Sharding::gradients);
    DistributedDataParallel model(world, parameters, small_buckets(optimizer));
    std::string text = std::to_string(resident_pages(model.gradient(0))) + " made ";
    for (int i = 0; i < 2; ++i) {
      train_step(model, optimizer, world.rank(), i, {0});
      optimizer.step();
      text += std::to_string(resident_pages(model.gradient(0)));
      const auto* const gradient = static_cast<const float*>(model.gradient(0).data);
      text += std::all_of(gradient, gradient + elements, [](float each) { return each == 0; }) ? " zero " : " other ";
    }
    optimizer.wait();
    return text;
  });
}

TEST(ShardedOptimizer, GradientsGiveTheirMemoryBack) {
  EXPECT_THAT(gradient_after_steps(5 << 20), Each("0 made 0 zero 0 zero "));
}

TEST(ShardedOptimizer, GradientsOfASmallModelAreZeroAndKeepTheirMemory) {
  EXPECT_THAT(gradient_after_steps(1 << 20), Each("0 made 1024 zero 1024 zero "));
}

TEST(ShardedOptimizer, RefusesWhatItCannotDo) {
  const auto results = results_of_ranks(1, [](ProcessGroup world) {
    Tensors tensors;
    std::vector<double> wide(1);
    const auto make = [&](const OptimizerOptions& options) {
      ShardedOptimizer(world, tensors.parameters(), options, Sharding::none);
    };
    EXPECT_THROW(make(AdamWOptions{.learning_rate = -1}), InvalidArgument);
    EXPECT_THROW(make(AdamWOptions{.beta2 = 1}), InvalidArgument);
    EXPECT_THROW(make(AdamWOptions{.epsilon = 0}), InvalidArgument);
    EXPECT_THROW(make(SgdOptions{.momentum = 1}), InvalidArgument);
    EXPECT_THROW(ShardedOptimizer(world, {{"wide", {1}, wide}}, SgdOptions{}, Sharding::none), InvalidArgument);
    ShardedOptimizer optimizer(world, tensors.parameters(), SgdOptions{}, Sharding::optimizer);
    EXPECT_THROW(optimizer.step(), InvalidArgument) << "there is no model";
    std::string text;
    try {
      DistributedDataParallel(world, {{"other", {1}, tensors.values[3]}}, small_buckets(optimizer));
    } catch (const InvalidArgument& error) {
      text = error.what();
    }
    DistributedDataParallelOptions options;
    options.release_gradients = true;
    EXPECT_THROW(DistributedDataParallel(world, tensors.parameters(), options), InvalidArgument);
    return text;
  });
  EXPECT_THAT(results, Each(HasSubstr("the model has other parameters than the optimizer")));
}

}  // namespace
}  // namespace ddp
