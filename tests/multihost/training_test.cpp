// The example's training on several hosts: the same as on one, up to rounding, and the same bits on every rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
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
  std::array<float, 16'384> values;
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

}  // namespace
}  // namespace ddp
