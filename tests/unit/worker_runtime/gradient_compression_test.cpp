#include "ddp/gradient_compression.hpp"

#include "ddp/distributed_data_parallel.hpp"
#include "ddp/error.hpp"
#include "tests/unit/worker_runtime/copy_state.hpp"
#include "tests/unit/worker_runtime/rank_results.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace ddp {
namespace {

using test::results_of_ranks;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A matrix that PowerSGD compresses, one that it does not, and a vector.
struct Matrices {
  std::vector<float> large = std::vector<float>(20 * 30);
  std::vector<float> small = std::vector<float>(2 * 2);
  std::vector<float> vector = std::vector<float>(5);

  std::vector<Parameter> parameters() {
    return {{"large", {20, 5, 6}, large}, {"small", {2, 2}, small}, {"vector", {5}, vector}};
  }
};

using Gradients = std::vector<std::vector<double>>;  // by parameter

DistributedDataParallelOptions hooked(std::shared_ptr<CommunicationHook> hook) {
  DistributedDataParallelOptions options;
  options.first_bucket_cap_bytes = options.bucket_cap_bytes = 0;  // a bucket each, with other numbers of stages
  options.communication_hook = std::move(hook);
  return options;
}

// The gradients that `rank` has in `step`: different for each, and of full rank.
Gradients gradients_of(int rank, int step) {
  std::mt19937 random(static_cast<unsigned>(1000 * step + rank));
  std::uniform_real_distribution<double> uniform(-1, 1);
  Gradients gradients{std::vector<double>(600), std::vector<double>(4), std::vector<double>(5)};
  for (auto& of_one : gradients) {
    for (double& each : of_one) each = uniform(random);
  }
  return gradients;
}

Gradients gradients_in(const DistributedDataParallel& model) {
  Gradients result;
  for (std::size_t p = 0; p < model.parameter_count(); ++p) {
    const auto gradient = model.gradient<float>(p);
    result.emplace_back(gradient.begin(), gradient.end());
  }
  return result;
}

// A step with these gradients. Returns what they became.
Gradients step_with(DistributedDataParallel& model, const Gradients& own) {
  auto step = model.begin_step();
  for (std::size_t p = own.size(); p-- > 0;) {
    auto* const to = model.gradient<float>(p).data();
    for (std::size_t i = 0; i < own[p].size(); ++i) to[i] = static_cast<float>(own[p][i]);
    step.ready(p);
  }
  step.finish();
  return gradients_in(model);
}

Gradients mean_of_ranks(int size, int step) {
  Gradients mean = gradients_of(0, step);
  for (int rank = 1; rank < size; ++rank) {
    const Gradients other = gradients_of(rank, step);
    for (std::size_t p = 0; p < mean.size(); ++p) {
      for (std::size_t i = 0; i < mean[p].size(); ++i) mean[p][i] += other[p][i];
    }
  }
  for (auto& of_one : mean) {
    for (double& each : of_one) each /= size;
  }
  return mean;
}

void add_to(Gradients& sum, const Gradients& more) {
  if (sum.empty()) sum.resize(more.size());
  for (std::size_t p = 0; p < more.size(); ++p) {
    sum[p].resize(more[p].size());
    for (std::size_t i = 0; i < more[p].size(); ++i) sum[p][i] += more[p][i];
  }
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = a.size() == b.size() ? 0 : std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

std::string bits_of(const Gradients& gradients) {
  std::ostringstream text;
  for (const auto& of_one : gradients) {
    for (const double each : of_one) text << std::hexfloat << each << " ";
  }
  return text.str();
}

// The mean over ranks of what is not sent yet of parameter `name`.
std::vector<double> mean_error(ProcessGroup& world, CommunicationHook& hook, const std::string& name) {
  std::vector<float> error;
  for (const Parameter& each : hook.state()) {
    if (each.name != name) continue;
    error.assign(static_cast<const float*>(each.values.data),
                 static_cast<const float*>(each.values.data) + each.values.count);
  }
  world.all_reduce(error, ReduceOp::average);
  return {error.begin(), error.end()};
}

TEST(CompressedAllReduce, AveragesAndRoundsToSixteenBits) {
  for (const auto type : {DataType::bfloat16, DataType::float16}) {
    const auto results = results_of_ranks(2, [type](ProcessGroup world) -> std::string {
      Matrices values;
      DistributedDataParallel model(world, values.parameters(), hooked(compressed_all_reduce({type})));
      for (int i = 0; i < 20; ++i) {
        const Gradients mean = mean_of_ranks(2, i), got = step_with(model, gradients_of(world.rank(), i));
        // Numbers below 1 are rounded on each rank and once more as a mean, each time by half of the last bit.
        const double error_max = type == DataType::bfloat16 ? 1.0 / 256 : 1.0 / 2048;
        for (std::size_t p = 0; p < 3; ++p) {
          const double error = largest_difference(got[p], mean[p]);
          if (error > error_max || error < error_max / 100) return "wrong by " + std::to_string(error);
        }
      }
      return "";
    });
    EXPECT_THAT(results, Each(""));
  }
}

TEST(CompressedAllReduce, RefusesWhatItCannotSend) {
  EXPECT_THROW(compressed_all_reduce({DataType::int8}), InvalidArgument);
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    std::vector<double> values(3);
    std::string text;
    try {
      DistributedDataParallel(world, {{"scale", {3}, values}}, hooked(compressed_all_reduce()));
    } catch (const InvalidArgument& error) {
      text = error.what();
    }
    DistributedDataParallel(world, {{"scale", {3}, values}});  // the group goes on
    return text;
  });
  EXPECT_THAT(results, Each(StartsWith("compressed_all_reduce works on float32, and parameter scale is float64\n")));
}

TEST(PowerSgd, IsExactForGradientsOfItsRankAndBeforeItStarts) {
  for (const PowerSgdOptions options :
       {PowerSgdOptions{.rank = 2, .start_step = 0}, PowerSgdOptions{.start_step = 2}}) {
    const auto results = results_of_ranks(2, [options](ProcessGroup world) -> std::string {
      Matrices values;
      DistributedDataParallel model(world, values.parameters(), hooked(power_sgd(options)));
      for (int i = 0; i < 2; ++i) {
        Gradients own = gradients_of(world.rank(), i);
        for (std::size_t e = 0; options.rank == 2 && e < 600; ++e) {  // outer products: of rank 2, and then of rank 1
          const double row =
              i == 1 || world.rank() == 0 ? 1.0 + static_cast<double>(e / 30) : 3.0 * static_cast<double>(e / 30 % 3);
          own[0][e] = 0.01 * row * (world.rank() == 0 ? static_cast<double>(e % 30) : 7.0);
        }
        std::vector<float> large(own[0].begin(), own[0].end());
        world.all_reduce(large, ReduceOp::average);
        const Gradients got = step_with(model, own);
        Gradients mean = mean_of_ranks(2, i);
        mean[0].assign(large.begin(), large.end());
        for (std::size_t p = 0; p < 3; ++p) {
          const double error = largest_difference(got[p], mean[p]);
          if (error > 1e-4) return std::to_string(p) + " is wrong by " + std::to_string(error);
        }
      }
      return "";
    });
    EXPECT_THAT(results, Each(""));
  }
}

TEST(PowerSgd, SendsLaterWhatItLosesNow) {
  for (const bool warm : {true, false}) {
    const auto results = results_of_ranks(3, [warm](ProcessGroup world) -> std::string {
      Matrices values;
      const auto hook = power_sgd({.rank = 1, .start_step = 1, .warm_start = warm});
      DistributedDataParallel model(world, values.parameters(), hooked(hook));
      Gradients means, sent;
      for (int i = 0; i < 30; ++i) {
        add_to(means, mean_of_ranks(3, i));
        add_to(sent, step_with(model, gradients_of(world.rank(), i)));
      }
      const double lost = largest_difference(sent[0], means[0]);
      const auto error = mean_error(world, *hook, "power_sgd.large.error");
      for (std::size_t e = 0; e < 600; ++e) sent[0][e] += error[e];
      std::string wrong;
      for (std::size_t p = 0; p < 3; ++p) {
        if (largest_difference(sent[p], means[p]) > 1e-3) wrong += std::to_string(p) + " is lost; ";
      }
      if (lost < 0.1) wrong += "nothing was compressed";
      return wrong;
    });
    EXPECT_THAT(results, Each(""));
  }
}

TEST(PowerSgd, GoesOnFromItsStateBitByBit) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) -> std::string {
    const PowerSgdOptions options{.rank = 2, .start_step = 2};
    Matrices values;
    const auto hook = power_sgd(options);
    DistributedDataParallel model(world, values.parameters(), hooked(hook));
    for (int i = 0; i < 5; ++i) step_with(model, gradients_of(world.rank(), i));
    const auto later = power_sgd(options);
    Matrices other_values;
    DistributedDataParallel other(world, other_values.parameters(), hooked(later));
    const std::string different = test::copy_state(hook->state(), later->state());
    if (!different.empty()) return "another state: " + different;
    const std::string straight = bits_of(step_with(model, gradients_of(world.rank(), 5)));
    return bits_of(step_with(other, gradients_of(world.rank(), 5))) == straight ? "same" : "different";
  });
  EXPECT_THAT(results, Each("same"));
}

TEST(PowerSgd, KeepsItsErrorsWhenBucketsAreRebuilt) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) -> std::string {
    const auto train = [&](bool rebuilds) {
      Matrices values;
      DistributedDataParallel model(world, values.parameters(), hooked(power_sgd({.rank = 1, .start_step = 0})));
      for (int i = 0; i < 5; ++i) step_with(model, gradients_of(world.rank(), i));
      if (rebuilds) model.rebuild_buckets();
      return bits_of(step_with(model, gradients_of(world.rank(), 5)));
    };
    return train(false) == train(true) ? "same" : "different";
  });
  EXPECT_THAT(results, Each("same"));
}

// A gradient that is zero, infinite, or of too low a rank for some steps, and later as it should be.
TEST(PowerSgd, RecoversFromStepsWithoutAUsefulGradient) {
  for (const auto bad : {0.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    for (const bool has_feedback : {true, false}) {
      const auto results = results_of_ranks(2, [=](ProcessGroup world) -> std::string {
        Matrices values;
        const auto hook = power_sgd({.rank = 2, .start_step = 0, .error_feedback = has_feedback});
        DistributedDataParallel model(world, values.parameters(), hooked(hook));
        for (int i = 0; i < 3; ++i) {
          Gradients own = gradients_of(world.rank(), i);
          for (std::size_t e = 0; e < 600; ++e) own[0][e] = world.rank() == 1 || bad == 0 ? bad : own[0][e];
          step_with(model, own);
        }
        Gradients own = gradients_of(0, 5);
        for (std::size_t e = 0; e < 600; ++e)
          own[0][e] = (1.0 + static_cast<double>(e / 30)) * static_cast<double>(e % 30) / 100;
        Gradients got;
        for (int i = 0; i < 3; ++i) got = step_with(model, own);
        const double error = largest_difference(got[0], own[0]);
        return error < 1e-3 ? "" : "wrong by " + std::to_string(error);
      });
      EXPECT_THAT(results, Each("")) << bad << " " << has_feedback;
    }
  }
}

TEST(PowerSgd, LeavesFrozenParametersZeroAndCountsAStepOnce) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) -> std::string {
    Matrices values;
    const auto hook = power_sgd({.rank = 1, .start_step = 0});
    DistributedDataParallelOptions options = hooked(hook);
    options.first_bucket_cap_bytes = options.bucket_cap_bytes = 1 << 20;  // all in one bucket, which is never idle
    DistributedDataParallel model(world, values.parameters(), options);
    std::string text;
    const auto train = [&](bool is_frozen) {
      auto step = model.begin_step();
      const Gradients own = gradients_of(world.rank(), 1);
      for (const std::size_t p : {2, 1, 0}) {
        if (p == 0 && is_frozen) continue;
        auto* const to = model.gradient<float>(p).data();
        for (std::size_t i = 0; i < own[p].size(); ++i) to[i] = static_cast<float>(own[p][i]);
        step.ready(p);
      }
      step.finish();
      text += *static_cast<const float*>(model.gradient(0).data) == 0 ? "0" : "1";
    };
    train(false);
    model.set_frozen(0, true);
    for (int i = 0; i < 2; ++i) train(true);
    model.set_frozen(0, false);
    train(false);
    return text + " " + std::to_string(*static_cast<std::int64_t*>(hook->state()[0].values.data));
  });
  EXPECT_THAT(results, Each("1001 3"));
}

TEST(TopK, AnInfiniteGradientIsOfOneStep) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    Matrices values;
    DistributedDataParallel model(world, values.parameters(), hooked(top_k({.ratio = 0.01})));
    std::string text;
    for (int i = 0; i < 3; ++i) {
      Gradients own = gradients_of(world.rank(), i);
      if (i == 0) std::fill(own[0].begin(), own[0].end(), std::numeric_limits<double>::infinity());
      const Gradients got = step_with(model, own);
      double sum = 0;
      for (const double each : got[0]) sum += each;
      text += std::isfinite(sum) ? "finite " : "infinite ";
    }
    return text;
  });
  EXPECT_THAT(results, Each("infinite finite finite "));
}

TEST(TopK, OfAllGradientsIsTheirMean) {
  const auto results = results_of_ranks(3, [](ProcessGroup world) -> std::string {
    Matrices values;
    DistributedDataParallel model(world, values.parameters(), hooked(top_k({.ratio = 1})));
    double error = 0;
    for (int i = 0; i < 3; ++i) {
      const Gradients mean = mean_of_ranks(3, i), got = step_with(model, gradients_of(world.rank(), i));
      for (std::size_t p = 0; p < 3; ++p) error = std::max(error, largest_difference(got[p], mean[p]));
    }
    return error < 1e-6 ? "" : "wrong by " + std::to_string(error);
  });
  EXPECT_THAT(results, Each(""));
}

TEST(TopK, SendsTheLargestAndLaterTheRest) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) -> std::string {
    Matrices values;
    const auto hook = top_k({.ratio = 0.05});
    DistributedDataParallel model(world, values.parameters(), hooked(hook));
    Gradients means, sent;
    std::string wrong;
    for (int i = 0; i < 30; ++i) {
      Gradients own = gradients_of(world.rank(), i);
      own[1][2] = 50;  // larger than all others together
      add_to(means, own);
      const Gradients got = step_with(model, own);
      if (got[1][2] != 50) wrong += "the largest is not sent; ";
      std::size_t count = 0;
      for (const auto& of_one : got) {
        for (const double each : of_one) count += each == 0 ? 0 : 1;
      }
      if (count > 2 * 32)
        wrong += std::to_string(count) + " are sent; ";  // 609 gradients and their padding on each rank
      add_to(sent, got);
    }
    for (std::size_t p = 0; p < 3; ++p) {
      std::vector<float> mean(means[p].begin(), means[p].end());
      world.all_reduce(mean, ReduceOp::average);
      const auto error = mean_error(world, *hook,
                                    std::string("top_k.") +
                                        (p == 0   ? "large"
                                         : p == 1 ? "small"
                                                  : "vector") +
                                        ".error");
      for (std::size_t e = 0; e < error.size(); ++e) sent[p][e] += error[e];
      if (largest_difference(sent[p], {mean.begin(), mean.end()}) > 1e-3) wrong += std::to_string(p) + " is lost; ";
    }
    return wrong;
  });
  EXPECT_THAT(results, Each(""));
}

// Three ranks, of which the last has fewer inputs.
TEST(GradientCompression, DividesByTheActiveRanksAndLosesNothing) {
  const struct {
    std::function<std::shared_ptr<CommunicationHook>()> make;
    std::string error;  // name in the hook's state, after which the parameter's comes
    double rounding;
  } cases[] = {{[] { return compressed_all_reduce(); }, "none.", 0.1},
               {[] { return power_sgd({.rank = 1, .start_step = 1}); }, "power_sgd.", 1e-4},
               {[] { return top_k({.ratio = 0.05}); }, "top_k.", 1e-4}};
  const std::string names[] = {"large", "small", "vector"};
  for (const auto& each : cases) {
    SCOPED_TRACE(each.error);
    const auto results = results_of_ranks(3, [&](ProcessGroup world) -> std::string {
      Matrices values;
      const auto hook = each.make();
      DistributedDataParallelOptions options = hooked(hook);
      options.uneven_inputs = UnevenInputs::divide_by_active;
      DistributedDataParallel model(world, values.parameters(), options);
      Gradients given, applied;  // sums over all ranks
      int step = 0;
      const auto note = [&](const Gradients& got) {
        const int active = step == 0 ? 3 : 2;
        for (int rank = 0; rank < active; ++rank) add_to(given, gradients_of(rank, step));
        for (int i = 0; i < active; ++i) add_to(applied, got);
        ++step;
      };
      const int steps = world.rank() == 2 ? 1 : 5;
      while (step < steps) note(step_with(model, gradients_of(world.rank(), step)));
      model.join([&] { note(gradients_in(model)); });
      if (step != 5) return "other steps";
      double largest = 0;
      for (std::size_t p = 0; p < given.size(); ++p) {
        const auto error = mean_error(world, *hook, each.error + names[p] + ".error");
        for (std::size_t i = 0; i < error.size(); ++i) applied[p][i] += 3 * error[i];
        largest = std::max(largest, largest_difference(applied[p], given[p]));
      }
      return largest < each.rounding ? "" : "wrong by " + std::to_string(largest);
    });
    EXPECT_THAT(results, Each(""));
  }
}

TEST(GradientCompression, KeepsWhatItSentForGradientsThatNobodyUses) {
  const struct {
    std::function<std::shared_ptr<CommunicationHook>()> make;
    std::string error;
  } cases[] = {{[] { return power_sgd({.rank = 1, .start_step = 0}); }, "power_sgd.large.error"},
               {[] { return top_k({.ratio = 0.05}); }, "top_k.large.error"}};
  for (const auto& each : cases) {
    for (const bool is_frozen : {true, false}) {
      const auto results = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
        Matrices values;
        const auto hook = each.make();
        DistributedDataParallelOptions options = hooked(hook);
        options.first_bucket_cap_bytes = options.bucket_cap_bytes = 1 << 20;  // one bucket, which is never idle
        options.unused = Unused::keep;
        DistributedDataParallel model(world, values.parameters(), options);
        step_with(model, gradients_of(world.rank(), 0));
        const auto before = mean_error(world, *hook, each.error);
        const double kept = largest_difference(before, std::vector<double>(600));
        if (kept < 0.01) return "nothing is kept";
        model.set_frozen(0, is_frozen);
        for (int i = 0; i < 3; ++i) {
          auto step = model.begin_step();
          for (const std::size_t p : {2, 1}) step.ready(p);
          step.finish();
        }
        const double lost = largest_difference(mean_error(world, *hook, each.error), before);
        return lost < 1e-5 ? "" : std::to_string(lost) + " is lost";
      });
      EXPECT_THAT(results, Each("")) << each.error << " " << is_frozen;
    }
  }
}

TEST(GradientCompression, RefusesOptionsOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(power_sgd({.rank = 0}), InvalidArgument);
  EXPECT_THROW(power_sgd({.compression_rate_min = 0}), InvalidArgument);
  EXPECT_THROW(power_sgd({.epsilon = nan}), InvalidArgument);
  EXPECT_THROW(top_k({.ratio = 0}), InvalidArgument);
  EXPECT_THROW(top_k({.ratio = 1.1}), InvalidArgument);
  EXPECT_THROW(top_k({.ratio = nan}), InvalidArgument);
}

}  // namespace
}  // namespace ddp
