// Below a limit of memory: models whose gradients fit are not refused.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "tests/integration/limited_group.hpp"
#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"

namespace ddp {
namespace {

using test::LimitedGroup;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::thrown_by;

constexpr std::size_t kMiB = 1u << 20;

// Two parameters, with gradients of 48 MiB together. On each of two ranks.
class Model {
 public:
  std::vector<Parameter> parameters() {
    return {{"a", {static_cast<std::int64_t>(kCount)}, a_}, {"b", {static_cast<std::int64_t>(kCount)}, b_}};
  }

  static void train_one_step(DistributedDataParallel& model) {
    auto step = model.begin_step();
    for (const std::size_t p : {0, 1}) {
      auto* const gradient = model.gradient<float>(p).data();
      gradient[0] += 1;
      gradient[kCount - 1] += 1;
      step.ready(p);
    }
    step.finish();
    for (const std::size_t p : {0, 1}) EXPECT_EQ(model.gradient<float>(p).data()[kCount - 1], 1);
  }

 private:
  static constexpr std::size_t kCount = 24 * kMiB / sizeof(float);
  std::vector<float> a_ = std::vector<float>(kCount), b_ = std::vector<float>(kCount);
};

TEST(MemoryLimit, ARebuildOfBucketsNeedsNoSecondCopyOfTheGradients) {
  const LimitedGroup limited(280 * kMiB);  // parameters and gradients of both ranks have 192
  if (!limited.exists()) GTEST_SKIP() << "no cgroup with a limit of memory can be made here";
  run_ranks(2, [&](int) {
    limited.enter();
    Model its;
    DistributedDataParallelOptions options;
    options.rebuild_buckets = RebuildBuckets::automatic;
    DistributedDataParallel model(init_process_group(), its.parameters(), options);
    for (int i = 0; i < 3; ++i) Model::train_one_step(model);
    model.rebuild_buckets();
    Model::train_one_step(model);
  });
}

TEST(MemoryLimit, ARebuildThatIsRefusedIsTriedAgainByTheNextStep) {
  run_ranks(2, [](int rank) {
    Model its;
    DistributedDataParallel model(init_process_group(), its.parameters());
    Model::train_one_step(model);
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
    const rlimit lower{rank == 0 ? limit.rlim_cur : 16 * kMiB, limit.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &lower), 0);
    for (const auto& call : {std::function<void()>([&] { model.rebuild_buckets(); }),
                             std::function<void()>([&] { static_cast<void>(model.begin_step()); })}) {
      const auto error = thrown_by<Error>(call);
      ASSERT_TRUE(error);
      EXPECT_THAT(error->what(), HasSubstr("rank 1 can't have "));
      EXPECT_EQ(model.gradient(1).data, nullptr);
      EXPECT_TRUE(model.gradient<float>(1).empty());
      EXPECT_EQ(model.bucket_memory().front().count, 0U);
    }
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    Model::train_one_step(model);
  });
}

// 192 MiB for the parameters and gradients of both ranks, and 48 for what the hook sends.
TEST(MemoryLimit, ARebuildOfBucketsNeedsNoSecondCopyOfWhatAHookSends) {
  const LimitedGroup limited(280 * kMiB);
  if (!limited.exists()) GTEST_SKIP() << "no cgroup with a limit of memory can be made here";
  run_ranks(2, [&](int) {
    limited.enter();
    Model its;
    DistributedDataParallelOptions options;
    options.communication_hook = compressed_all_reduce();
    DistributedDataParallel model(init_process_group(), its.parameters(), options);
    Model::train_one_step(model);
    model.rebuild_buckets();
    Model::train_one_step(model);
  });
}

// What was reduced before the rebuild went with its memory.
TEST(MemoryLimit, AnOptimizerDoesNotStepWithGradientsThatAreGone) {
  run_ranks(2, [](int rank) {
    Model its;
    ProcessGroup group = init_process_group();
    ShardedOptimizer optimizer(group, its.parameters(), SgdOptions{.learning_rate = 1}, Sharding::none);
    DistributedDataParallelOptions options;
    optimizer.prepare(options);
    DistributedDataParallel model(group, its.parameters(), options);
    Model::train_one_step(model);
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
    const rlimit lower{rank == 0 ? limit.rlim_cur : 16 * kMiB, limit.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &lower), 0);
    EXPECT_TRUE(thrown_by<Error>([&] { model.rebuild_buckets(); }));
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    optimizer.step();
    EXPECT_EQ(static_cast<float*>(its.parameters().front().values.data)[0], 0);
    Model::train_one_step(model);
    optimizer.step();
    EXPECT_EQ(static_cast<float*>(its.parameters().front().values.data)[0], -1);
  });
}

}  // namespace
}  // namespace ddp
