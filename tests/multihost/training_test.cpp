// The example's training on several hosts: the same as on one, up to rounding, and the same bits on every rank.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "examples/train_breast_cancer/trainer.hpp"
#include "tests/integration/rank_processes.hpp"
#include "tests/multihost/multihost.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp {
namespace {

using testing::Shared;

constexpr int kSteps = 50;
constexpr double kRounding = 2e-5;  // see integration/train_breast_cancer/training_test.cpp

class TrainingOverHosts : public test::Multihost {};

struct Parameters {
  std::array<float, 120'000> values;
  std::size_t count;
};

// What a rank does: trains, checks that all ranks hold the same bits, and leaves its parameters if it is rank 0.
void train(const test::ScratchDirectory& scratch, Shared<Parameters>& result) {
  auto world = init_process_group();
  ::train::Options options;
  options.data = DDP_TEST_SOURCE_DIR "/examples/data/breast_cancer.csv";
  options.batch_size = 8;
  options.checkpoint_directory = scratch.path();
  options.checkpoint_every = 0;
  ::train::Trainer trainer(world, options);
  for (int i = 0; i < kSteps; ++i) trainer.step();
  std::vector<float> mine;
  for (const Parameter& parameter : trainer.parameters()) {
    const auto* const values = static_cast<const float*>(parameter.values.data);
    mine.insert(mine.end(), values, values + parameter.values.count);
  }
  const std::string_view bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(float));
  const std::vector<std::int64_t> hash{static_cast<std::int64_t>(std::hash<std::string_view>()(bytes))};
  std::vector<std::int64_t> hashes(static_cast<std::size_t>(world.size()));
  world.all_gather(hash, hashes);
  EXPECT_THAT(hashes, ::testing::Each(hash[0]));
  ASSERT_LE(mine.size(), result->values.size());
  if (world.rank() != 0) return;
  std::copy(mine.begin(), mine.end(), result->values.begin());
  result->count = mine.size();
}

TEST_F(TrainingOverHosts, EqualsTrainingOnOneHost) {
  test::Hosts* const hosts = make_hosts({});
  if (hosts == nullptr) return;
  const test::ScratchDirectory scratch;
  Shared<Parameters> on_one, on_two, again;
  testing::run_ranks(4, [&](int) { train(scratch, on_one); });
  testing::run_ranks({*hosts, {0, 0, 1, 1}, ""}, [&](int) { train(scratch, on_two); });
  testing::run_ranks({*hosts, {0, 0, 1, 1}, ""}, [&](int) { train(scratch, again); });
  ASSERT_GT(on_one->count, 0u);
  ASSERT_EQ(on_two->count, on_one->count);
  double difference = 0;
  for (std::size_t i = 0; i < on_one->count; ++i) {
    difference = std::max<double>(difference, std::abs(on_one->values[i] - on_two->values[i]));
  }
  EXPECT_LT(difference, kRounding);
  EXPECT_EQ(std::memcmp(&on_two->values, &again->values, sizeof again->values), 0) << "two runs differ";
}

// A matrix that PowerSGD compresses, large enough for the ring of hosts, and a vector. Their gradients follow from the
// rank and the step alone.
constexpr std::size_t kRows = 200, kColumns = 500, kVector = 7;

using Gradient = std::function<float(std::size_t parameter, std::size_t element)>;

// Trains, checks that all ranks hold the same bits, and leaves rank 0's parameters.
void train_small(const ProcessGroup& world, const std::function<void(DistributedDataParallel&, const Gradient&)>& step,
                 const DistributedDataParallelOptions& options, std::vector<std::vector<float>>& values) {
  DistributedDataParallel model(world, {{"matrix", {kRows, kColumns}, values[0]}, {"vector", {kVector}, values[1]}},
                                options);
  for (std::size_t i = 0; i < 12; ++i) {
    step(model, [&](std::size_t parameter, std::size_t element) {
      const auto of = static_cast<std::size_t>(world.rank()) * 37 + i * 101 + parameter * 13 + element * element * 7;
      return static_cast<float>(of % 1009) / 504.5F - 1;
    });
  }
}

void average(DistributedDataParallel& model, const Gradient& gradient) {
  auto step = model.begin_step();
  for (const std::size_t p : {1, 0}) {
    const auto to = model.gradient<float>(p);
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = gradient(p, i);
    step.ready(p);
  }
  step.finish();
}

void leave(ProcessGroup& world, const std::vector<std::vector<float>>& values, Shared<Parameters>& result) {
  std::vector<float> mine = values[0];
  mine.insert(mine.end(), values[1].begin(), values[1].end());
  std::vector<float> of_rank_0 = mine;
  world.broadcast(of_rank_0, 0);
  EXPECT_EQ(std::memcmp(mine.data(), of_rank_0.data(), mine.size() * sizeof(float)), 0) << "ranks differ";
  if (world.rank() != 0) return;
  std::copy(mine.begin(), mine.end(), result->values.begin());
  result->count = mine.size();
}

double difference(const Shared<Parameters>& a, const Shared<Parameters>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a->count; ++i) {
    largest = std::max<double>(largest, std::abs(a->values[i] - b->values[i]));
  }
  return largest;
}

TEST_F(TrainingOverHosts, HooksComeToWhatTheyComeToOnOneHost) {
  test::Hosts* const hosts = make_hosts({});
  if (hosts == nullptr) return;
  const struct {
    const char* name;
    std::function<std::shared_ptr<CommunicationHook>()> make;
    double rounding;  // of parameters that move by about 1
  } cases[] = {{"compressed_all_reduce", [] { return compressed_all_reduce(); }, 0.05},
               {"power_sgd", [] { return power_sgd({.rank = 2, .start_step = 2}); }, 1e-4},
               {"top_k", [] { return top_k({.ratio = 0.1}); }, 1e-5}};
  for (const auto& each : cases) {
    SCOPED_TRACE(each.name);
    const auto train_into = [&](Shared<Parameters>& result) {
      auto world = init_process_group();
      std::vector<std::vector<float>> values{std::vector<float>(kRows * kColumns), std::vector<float>(kVector)};
      DistributedDataParallelOptions options;
      options.communication_hook = each.make();
      const auto step = [&](DistributedDataParallel& model, const Gradient& gradient) {
        average(model, gradient);
        for (std::size_t p = 0; p < 2; ++p) {
          for (std::size_t i = 0; i < values[p].size(); ++i) values[p][i] -= model.gradient<float>(p)[i];
        }
      };
      train_small(world, step, options, values);
      leave(world, values, result);
    };
    Shared<Parameters> on_one, on_two, again;
    testing::run_ranks(4, [&](int) { train_into(on_one); });
    testing::run_ranks({*hosts, {0, 0, 1, 1}, ""}, [&](int) { train_into(on_two); });
    testing::run_ranks({*hosts, {0, 0, 1, 1}, ""}, [&](int) { train_into(again); });
    ASSERT_EQ(on_two->count, kRows * kColumns + kVector);
    EXPECT_LT(difference(on_one, on_two), each.rounding);
    EXPECT_EQ(std::memcmp(&on_two->values, &again->values, sizeof again->values), 0) << "two runs differ";
  }
}

// On two hosts with the same bits as without sharding; on three hosts sums are rounded in another order.
TEST_F(TrainingOverHosts, AShardedOptimizerComesToWhatAWholeOneComesTo) {
  for (const int count : {2, 3}) {
    SCOPED_TRACE(std::to_string(count) + " hosts");
    test::Hosts* const hosts = make_hosts({.count = count});
    if (hosts == nullptr) return;
    const auto train_into = [&](Sharding sharding, Shared<Parameters>& result) {
      auto world = init_process_group();
      std::vector<std::vector<float>> values{std::vector<float>(kRows * kColumns), std::vector<float>(kVector)};
      ShardedOptimizer optimizer(world, {{"matrix", {kRows, kColumns}, values[0]}, {"vector", {kVector}, values[1]}},
                                 AdamWOptions{.learning_rate = 0.1}, sharding);
      DistributedDataParallelOptions options;
      optimizer.prepare(options);
      const auto step = [&](DistributedDataParallel& model, const Gradient& gradient) {
        average(model, gradient);
        optimizer.clip_gradients_by_value(0.5);
        optimizer.step();
        optimizer.wait();
      };
      train_small(world, step, options, values);
      leave(world, values, result);
    };
    const std::vector<int> places = count == 2 ? std::vector<int>{0, 0, 1, 1} : std::vector<int>{0, 1, 1, 2};
    Shared<Parameters> whole, by_state, by_gradients;
    testing::run_ranks({*hosts, places, ""}, [&](int) { train_into(Sharding::none, whole); });
    testing::run_ranks({*hosts, places, ""}, [&](int) { train_into(Sharding::optimizer, by_state); });
    testing::run_ranks({*hosts, places, ""}, [&](int) { train_into(Sharding::gradients, by_gradients); });
    ASSERT_EQ(whole->count, kRows * kColumns + kVector);
    EXPECT_GT(std::abs(whole->values[0]), 0.1F);
    EXPECT_LE(difference(whole, by_state), count == 2 ? 0 : 1e-4);
    EXPECT_LE(difference(whole, by_gradients), count == 2 ? 0 : 1e-4);
  }
}

}  // namespace
}  // namespace ddp
