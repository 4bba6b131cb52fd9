// The caps and the order of buckets that the engine chooses by itself, with an optimizer whose state follows the
// buckets.
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/sharded_optimizer.hpp"
#include "tests/unit/worker_runtime/rank_results.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace ddp {
namespace {

using test::results_of_ranks;
using ::testing::Each;

// By parameter. The four pairs of caps that the engine tries make three layouts of them: 25 and 8 MiB make the same.
constexpr std::size_t kValueCounts[] = {350'000, 100'001, 90'000, 17, 200'000};
constexpr std::size_t kLayouts = 1 + 3;  // the first one, and those three in the order of backward

struct TrainedValues {
  std::vector<std::vector<float>> values;
  std::set<std::string> layouts;
};

TrainedValues trained(const ProcessGroup& world, Sharding sharding, DistributedDataParallelOptions options) {
  TrainedValues out;
  std::vector<Parameter> parameters;
  for (const std::size_t count : kValueCounts) out.values.emplace_back(count, 0.5F);
  for (std::size_t p = 0; p < out.values.size(); ++p) {
    parameters.push_back({std::to_string(p), {static_cast<std::int64_t>(out.values[p].size())}, out.values[p]});
  }
  ShardedOptimizer optimizer(world, parameters, AdamWOptions{.learning_rate = 0.01}, sharding);
  optimizer.prepare(options);
  DistributedDataParallel model(world, parameters, options);
  for (int i = 0; i < 30; ++i) {
    optimizer.wait();
    auto step = model.begin_step();
    out.layouts.insert(model.describe_buckets());
    for (const std::size_t p : {3, 1, 4, 0, 2}) {
      auto* const gradient = model.gradient<float>(p).data();
      for (std::size_t e = 0; e < kValueCounts[p]; ++e) {
        gradient[e] = static_cast<float>((e + p + 3 * static_cast<std::size_t>(i)) % 101) - 50 +
                      static_cast<float>(world.rank()) * 0.3F;
      }
      step.ready(p);
    }
    step.finish();
    optimizer.step();
  }
  optimizer.wait();
  return out;
}

TEST(AutomaticBuckets, AShardedOptimizerHasTheBitsOfOneThatIsNotSharded) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) -> std::string {
    const TrainedValues wanted = trained(world, Sharding::none, {});
    DistributedDataParallelOptions automatic;
    automatic.rebuild_buckets = RebuildBuckets::automatic;
    automatic.bucket_cap_bytes = kAutomaticBucketCap;
    for (const Sharding sharding : {Sharding::optimizer, Sharding::gradients}) {
      const TrainedValues its = trained(world, sharding, automatic);
      if (its.layouts.size() != kLayouts) return std::to_string(its.layouts.size()) + " layouts";
      for (std::size_t p = 0; p < wanted.values.size(); ++p) {
        const auto& is = its.values[p];
        if (std::memcmp(is.data(), wanted.values[p].data(), is.size() * sizeof(float)) != 0) {
          return "parameter " + std::to_string(p) + " has other bits";
        }
      }
    }
    return "same";
  });
  EXPECT_THAT(results, Each("same"));
}

}  // namespace
}  // namespace ddp
