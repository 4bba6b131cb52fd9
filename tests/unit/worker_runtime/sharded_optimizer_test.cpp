#include "ddp/sharded_optimizer.hpp"

#include "ddp/error.hpp"
#include "ddp/gradient_scaling.hpp"
#include "tests/unit/worker_runtime/copy_state.hpp"
#include "tests/unit/worker_runtime/parameters_of.hpp"
#include "tests/unit/worker_runtime/rank_results.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
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

  std::vector<Parameter> parameters() { return test::parameters_of(values); }

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
      train(0, true);
      train(9, true);  // not clipped
      return text;
    });
    EXPECT_THAT(results, Each("5 -3,-4 5 -33,-44 5 -63,-84 "));
  }
}

// One element on each of two ranks: the limit of a value holds whatever norm is asked for after it.
TEST(ShardedOptimizer, ClippingGoesOnFromClippedGradients) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) -> std::string {
    const auto train = [&](Sharding sharding, double second_norm_max, bool by_model) {
      std::vector<float> first{0}, second{0};
      const std::vector<Parameter> parameters{{"first", {1}, first}, {"second", {1}, second}};
      ShardedOptimizer optimizer(world, parameters, SgdOptions{.learning_rate = 1}, sharding);
      DistributedDataParallelOptions options;
      optimizer.prepare(options);
      DistributedDataParallel model(world, parameters, options);
      auto step = model.begin_step();
      *model.gradient<float>(0).data() = 3;
      *model.gradient<float>(1).data() = 4;
      step.ready(1);
      step.ready(0);
      step.finish();
      const auto by_norm = [&](double norm_max) {
        return by_model ? double{clip_gradients_by_norm(model, norm_max)} : optimizer.clip_gradients_by_norm(norm_max);
      };
      by_norm(2.5);  // to 1.5 and 2
      by_model ? clip_gradients_by_value(model, 1.75) : optimizer.clip_gradients_by_value(1.75);
      const double norm = by_norm(second_norm_max);
      optimizer.step();
      optimizer.wait();
      std::string text;
      for (const double each : {norm, double{first[0]}, double{second[0]}}) {
        text += std::to_string(std::lround(each * 1000)) + " ";
      }
      return text;
    };
    for (const double second_norm_max : {9.0, 2.0}) {
      const std::string wanted = train(Sharding::none, second_norm_max, true);
      if (second_norm_max == 9 && wanted != "2305 -1500 -1750 ") return "the model's: " + wanted;
      for (const auto sharding : {Sharding::none, Sharding::optimizer, Sharding::gradients}) {
        const std::string its = train(sharding, second_norm_max, false);
        if (its != wanted) return its + "instead of " + wanted;
      }
    }
    return "";
  });
  EXPECT_THAT(results, Each(""));
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

// Forward reads each parameter right after its wait(i), while others may still be on their way.
TEST(ShardedOptimizer, AParameterIsThereAfterItsOwnWait) {
  for (const auto sharding : {Sharding::optimizer, Sharding::gradients}) {
    const ddp::testing::Shared<std::atomic<int>> begun;  // steps of the optimizer, on rank 0
    const auto results = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
      const auto train = [&](Sharding its, bool waits_for_each) {
        Tensors tensors, seen;
        ShardedOptimizer optimizer(world, tensors.parameters(), AdamWOptions{.learning_rate = 0.01}, its);
        DistributedDataParallel model(world, tensors.parameters(), small_buckets(optimizer));
        std::string bits;
        for (int i = 0; i < 5; ++i) {
          train_step(model, optimizer, world.rank(), i);
          if (world.rank() == 0) {
            optimizer.step();
            if (waits_for_each) ++*begun;
          } else {  // what this rank owns is not on its way before rank 0 has come to its wait(i)
            if (waits_for_each) ddp::testing::wait_until([&] { return begun->load() == i + 1; });
            optimizer.step();
          }
          if (!waits_for_each) optimizer.wait();
          for (std::size_t p = 0; p < tensors.values.size(); ++p) {
            if (waits_for_each) optimizer.wait(p);
            seen.values[p] = tensors.values[p];
          }
          bits += seen.bits();
        }
        return bits;
      };
      return train(sharding, true) == train(Sharding::none, false) ? "" : "an old parameter is read";
    });
    EXPECT_THAT(results, Each(""));
  }
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

// By value, by norm, and both, where the loss may be scaled, too.
TEST(ShardedOptimizer, ClippedGradientsHaveTheSameBitsAsWithoutSharding) {
  const auto results = results_of_ranks(3, [](ProcessGroup world) -> std::string {
    enum class Clip { value, norm, both };
    const auto train = [&](Sharding sharding, Clip clip, double scale, bool by_model) {
      Tensors tensors;
      ShardedOptimizer optimizer(world, tensors.parameters(), AdamWOptions{.learning_rate = 0.01}, sharding);
      DistributedDataParallel model(world, tensors.parameters(), small_buckets(optimizer));
      LossScaler scaler(world, {.scale = scale});
      for (int i = 0; i < 5; ++i) {
        train_step(model, optimizer, world.rank(), i);
        if (scale != 1) {
          EXPECT_TRUE(by_model ? scaler.unscale(model) : scaler.unscale(optimizer));
        }
        const double limit = 0.25 / scale;
        if (clip != Clip::value) {
          by_model ? static_cast<void>(clip_gradients_by_norm(model, 20 * limit))
                   : static_cast<void>(optimizer.clip_gradients_by_norm(20 * limit));
        }
        if (clip != Clip::norm) {
          by_model ? clip_gradients_by_value(model, limit) : optimizer.clip_gradients_by_value(limit);
        }
        optimizer.step();
      }
      optimizer.wait();
      return tensors.bits();
    };
    const std::string plain = train(Sharding::none, Clip::norm, 1, true);
    for (const double scale : {1.0, 1024.0}) {
      for (const Clip clip : {Clip::value, Clip::norm, Clip::both}) {
        const std::string whole = train(Sharding::none, clip, scale, false);
        const std::string its = std::to_string(static_cast<int>(clip)) + " of " + std::to_string(scale);
        if (clip != Clip::both && train(Sharding::none, clip, scale, true) != whole) return "the model's " + its;
        if (train(Sharding::optimizer, clip, scale, false) != whole) return "stage 1 " + its;
        if (train(Sharding::gradients, clip, scale, false) != whole) return "stage 2 " + its;
        if (clip != Clip::norm && whole == plain) return "not clipped by value";
      }
    }
    return "";
  });
  EXPECT_THAT(results, Each(""));
}

TEST(ShardedOptimizer, SkippedAndFrozenParametersStayAsTheyAre) {
  for (const auto sharding : {Sharding::none, Sharding::optimizer, Sharding::gradients}) {
    const auto results = results_of_ranks(2, [sharding](ProcessGroup world) {
      Tensors tensors;
      ShardedOptimizer optimizer(world, tensors.parameters(), AdamWOptions{}, sharding);
      DistributedDataParallel model(world, tensors.parameters(), small_buckets(optimizer));
      train_step(model, optimizer, world.rank(), 0);  // from here on there is momentum
      optimizer.step();
      optimizer.wait();
      const auto first = tensors.values;
      optimizer.set_skipped(2, true);
      model.set_frozen(0, true);  // in a bucket with parameter 1
      for (int i = 1; i < 4; ++i) {
        train_step(model, optimizer, world.rank(), i, {3, 2, 1});
        optimizer.step();
      }
      optimizer.wait();
      std::string text;
      for (std::size_t p = 0; p < 4; ++p) text += tensors.values[p] == first[p] ? "=" : "-";
      model.set_frozen(0, false);
      train_step(model, optimizer, world.rank(), 4);
      optimizer.step();
      optimizer.wait();
      return text + (tensors.values[0] == first[0] ? "=" : "-");
    });
    EXPECT_THAT(results, Each("=-=--")) << static_cast<int>(sharding);
  }
}

TEST(ShardedOptimizer, DividesByTheActiveRanksIfInputsAreUneven) {
  const auto results = results_of_ranks(3, [](ProcessGroup world) -> std::string {
    const auto train = [&](Sharding sharding, Tensors& tensors) {
      ShardedOptimizer optimizer(world, tensors.parameters(), SgdOptions{.learning_rate = 1}, sharding);
      DistributedDataParallelOptions options = small_buckets(optimizer);
      options.uneven_inputs = UnevenInputs::divide_by_active;
      DistributedDataParallel model(world, tensors.parameters(), options);
      for (int i = 0; i < (world.rank() == 2 ? 1 : 3); ++i) {
        train_step(model, optimizer, world.rank(), i);
        optimizer.step();
      }
      optimizer.wait();
      model.join([&] {
        optimizer.step();
        optimizer.wait();
      });
    };
    Tensors whole, by_state, by_gradients, expected;
    train(Sharding::none, whole);
    train(Sharding::optimizer, by_state);
    train(Sharding::gradients, by_gradients);
    if (by_state.bits() != whole.bits()) return "stage 1 differs";
    if (by_gradients.bits() != whole.bits()) return "stage 2 differs";
    for (int i = 0; i < 3; ++i) {
      const int active = i == 0 ? 3 : 2;
      for (int rank = 0; rank < active; ++rank) {
        std::mt19937 random(static_cast<unsigned>(100 * i + rank));  // as train_step()
        std::uniform_real_distribution<float> uniform(-1, 1);
        for (const std::size_t p : {3, 2, 1, 0}) {
          for (float& each : expected.values[p]) each -= uniform(random) / static_cast<float>(active);
        }
      }
    }
    float largest = 0;
    for (std::size_t p = 0; p < 4; ++p) {
      for (std::size_t i = 0; i < expected.values[p].size(); ++i) {
        largest = std::max(largest, std::abs(expected.values[p][i] - whole.values[p][i]));
      }
    }
    return largest < 1e-5F ? "" : "wrong by " + std::to_string(largest);
  });
  EXPECT_THAT(results, Each(""));
}

TEST(ShardedOptimizer, WhatNoRankUsedInOneModelIsUpdatedInTheNext) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    Tensors tensors;
    ShardedOptimizer optimizer(world, tensors.parameters(), AdamWOptions{}, Sharding::optimizer);
    std::string text;
    for (const auto unused : {Unused::keep, Unused::zeros}) {
      DistributedDataParallelOptions options = small_buckets(optimizer);
      options.unused = unused;
      DistributedDataParallel model(world, tensors.parameters(), options);
      const auto before = tensors.values[1];
      train_step(model, optimizer, world.rank(), 0,
                 unused == Unused::keep ? std::vector<std::size_t>{3, 2, 0} : std::vector<std::size_t>{3, 2, 1, 0});
      optimizer.step();
      optimizer.wait();
      text += tensors.values[1] == before ? "kept " : "updated ";
    }
    return text;
  });
  EXPECT_THAT(results, Each("kept updated "));
}

TEST(ShardedOptimizer, LeavesWhatNoRankUsedAsIfItWereSkipped) {
  for (const auto sharding : {Sharding::none, Sharding::optimizer, Sharding::gradients}) {
    const auto results = results_of_ranks(2, [sharding](ProcessGroup world) {
      const auto train = [&](Unused unused, std::vector<Tensors>& after) {
        Tensors tensors;
        ShardedOptimizer optimizer(world, tensors.parameters(), AdamWOptions{.weight_decay = 0.1}, sharding);
        DistributedDataParallelOptions options = small_buckets(optimizer);
        options.unused = unused;
        DistributedDataParallel model(world, tensors.parameters(), options);
        for (int i = 0; i < 4; ++i) {
          const bool is_used = i == 0 || (i == 2 && world.rank() == 1);
          train_step(model, optimizer, world.rank(), i,
                     is_used ? std::vector<std::size_t>{3, 2, 1, 0} : std::vector<std::size_t>{3, 2, 0});
          if (unused == Unused::zeros) optimizer.set_skipped(1, i % 2 == 1);
          optimizer.step();
          optimizer.wait();
          after.push_back(tensors);
        }
      };
      std::vector<Tensors> kept, skipped;
      train(Unused::keep, kept);
      train(Unused::zeros, skipped);
      std::string text;
      for (std::size_t i = 1; i < 4; ++i) {
        text += kept[i].values[1] == kept[i - 1].values[1] ? "=" : "-";
        text += kept[i].bits() == skipped[i].bits() ? "same " : "different ";
      }
      return text;
    });
    EXPECT_THAT(results, Each("=same -same =same "));
  }
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
