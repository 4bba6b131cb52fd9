// The gradient engine and elastic state over a stand-in for a device, whose memory is the host's.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/integration/thrown_by.hpp"
#include "tests/unit/worker_runtime/stand_in_backend.hpp"
#include "worker_runtime/elastic/offer.hpp"

namespace ddp {
namespace {

using test::Calls;
using test::Collective;
using test::CollectiveKind;
using test::kGpu;
using test::StandInBackend;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::thrown_by;

// What a group of one does with its memory.
void copy_to_output(const Collective& collective) {
  if (collective.input.data == collective.output.data || collective.output.count == 0) return;
  std::memcpy(collective.output.data, collective.input.data, collective.output.bytes());
}

struct Device1 {
  std::shared_ptr<Calls> calls = std::make_shared<Calls>();
  std::unique_ptr<StandInBackend> backend = std::make_unique<StandInBackend>(calls, kGpu);
  test::StandInMemory* memory = &backend->memory();
  ProcessGroup group = test::group_over(std::move(backend), 0, 1);

  Device1() { calls->work = copy_to_output; }
};

class DeviceEngine : public ::testing::Test {
 protected:
  Device1 gpu_;
  std::vector<float> values_ = std::vector<float>(3);
  DistributedDataParallel model_{gpu_.group,
                                 {{"a", {2}, {values_.data(), 2, DataType::float32, kGpu}},
                                  {"b", {1}, {values_.data() + 2, 1, DataType::float32, kGpu}}}};

  void train(const std::vector<std::size_t>& used) {
    auto step = model_.begin_step();
    for (const std::size_t parameter : used) step.ready(parameter);
    step.finish();
  }
};

TEST_F(DeviceEngine, ItsMemoryIsTheDevices) {
  EXPECT_EQ(model_.gradient(0).device, kGpu);
  const int zeros = gpu_.memory->zeros;
  train({0, 1});
  EXPECT_GT(gpu_.memory->zeros, zeros);
  ASSERT_FALSE(gpu_.calls->submitted.empty());
  EXPECT_EQ(gpu_.calls->submitted.back()[0].kind, CollectiveKind::all_reduce);
  EXPECT_EQ(gpu_.calls->submitted.back()[0].input.device, kGpu);
}

TEST_F(DeviceEngine, AnUnusedParameterIsKnownOneStepLater) {
  train({0, 1});
  train({1});
  EXPECT_EQ(gpu_.memory->reads_begun, 2);
  const auto error = thrown_by<GradientError>([&] { train({0, 1}); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), HasSubstr("parameter a got no gradient on rank 0"));
  EXPECT_THAT(error->what(), HasSubstr("the last step's gradients are undefined"));
  train({0, 1});  // the step in which it was told was in order
  train({0});
  auto next = model_.begin_step(Sync::off);  // says nothing
  next.ready(0);
  next.finish();
  EXPECT_THROW(train({0, 1}), GradientError);
}

TEST_F(DeviceEngine, AnUnusedParameterOfTheLastStepIsToldByCheck) {
  train({0, 1});
  model_.check();
  train({1});
  const auto error = thrown_by<GradientError>([&] { model_.check(); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), HasSubstr("parameter a got no gradient on rank 0"));
  model_.check();
  train({0, 1});
}

TEST_F(DeviceEngine, AnUnusedParameterIsKnownBeforeTheOptimizerStepsIfTheHostWaits) {
  DistributedDataParallelOptions options;
  options.wait_in_finish = true;
  DistributedDataParallel model(gpu_.group, {{"a", {3}, {values_.data(), 3, DataType::float32, kGpu}}}, options);
  auto step = model.begin_step();
  const auto error = thrown_by<GradientError>([&] { step.finish(); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), HasSubstr("this step's gradients are undefined"));
}

TEST_F(DeviceEngine, NoHostCopyIsInAStep) {
  train({0, 1});
  const int copies = gpu_.memory->copies;
  for (int i = 0; i < 5; ++i) train({0, 1});
  EXPECT_EQ(gpu_.memory->copies, copies);
}

// The others look at the flags of the step before, and would search for unused parameters with this rank.
TEST_F(DeviceEngine, ACancelledStepTakesPartInTheSearchOfTheStepBefore) {
  train({0, 1});
  train({1});
  auto step = model_.begin_step();
  step.ready(1);
  const std::size_t submitted = gpu_.calls->submitted.size();
  const std::size_t run = gpu_.calls->run.size();
  const auto error = thrown_by<GradientError>([&] { step.cancel(); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), HasSubstr("parameter a got no gradient on rank 0"));
  EXPECT_EQ(gpu_.calls->submitted.size(), submitted + 2) << "the bucket, the flags";
  ASSERT_GT(gpu_.calls->run.size(), run);
  EXPECT_EQ(gpu_.calls->run.back().kind, CollectiveKind::all_gather);
  train({0, 1});  // nothing is told of the step that this rank itself cancelled
  train({0, 1});
}

TEST(DeviceState, GoesThroughHostCopiesAlsoWhenTheGroupHasEnded) {
  std::vector<float> there{1, 2, 3};
  std::vector<float> here{4};
  ElasticState state;
  state.add({there.data(), 3, DataType::float32, kGpu});
  state.add(here);
  {
    Device1 gpu;
    state.sync(gpu.group);
    EXPECT_GT(gpu.memory->copies, 0);
  }
  there = {5, 6, 7};
  here = {8};
  state.commit();
  there = {0, 0, 0};
  here = {0};
  state.restore();
  EXPECT_THAT(there, ElementsAre(5, 6, 7));
  EXPECT_THAT(here, ElementsAre(8));
}

TEST(DeviceState, CommitThatFailsHalfWayKeepsTheCommitBefore) {
  std::vector<float> here{1};
  std::vector<float> there{1};
  ElasticState state;
  state.add(here);  // copied before the other entry
  state.add({there.data(), 1, DataType::float32, kGpu});
  Device1 gpu;
  state.sync(gpu.group);
  for (float step = 2; step <= 3; ++step) {  // Each of the two copies is once the copy that fails.
    here = there = {step};
    state.commit();
    here = there = {-1};
    gpu.memory->before_copy_to_host = [] { throw TimeoutError("the device does not answer"); };
    EXPECT_THROW(state.commit(), TimeoutError);
    gpu.memory->before_copy_to_host = nullptr;
    here = there = {0};
    state.restore();
    EXPECT_THAT(here, ElementsAre(step));
    EXPECT_THAT(there, ElementsAre(step));
  }
  EXPECT_EQ(state.commits(), 2u);
}

// This process is one rank of two; the test plays the other rank.
struct OneOfTwo {
  OneOfTwo(Device device, int rank)
      : group(test::group_over(std::make_unique<StandInBackend>(calls, device), rank, 2)), rank_(rank) {
    calls->work = [this](const Collective& collective) { perform(collective); };
  }
  OneOfTwo(const OneOfTwo&) = delete;
  OneOfTwo& operator=(const OneOfTwo&) = delete;

  std::shared_ptr<Calls> calls = std::make_shared<Calls>();
  ProcessGroup group;
  std::function<elastic::Offer(elastic::Offer own)> other_offer;  // the same as this rank's if empty
  std::int64_t broadcast_value = 0;                               // what the other rank sends as the root
  std::optional<int> root;                                        // of the last broadcast
  bool is_other_lost_at_barrier = false;

 private:
  void perform(const Collective& collective) {
    if (collective.kind == CollectiveKind::all_gather) gather_offers(collective);
    if (collective.kind == CollectiveKind::broadcast) {
      root = collective.root;
      if (root != rank_) std::memcpy(collective.output.data, &broadcast_value, sizeof broadcast_value);
    }
    if (collective.kind == CollectiveKind::barrier && is_other_lost_at_barrier)
      throw RankFailure("the other rank was lost", {1 - rank_});
  }

  void gather_offers(const Collective& collective) const {
    const auto own = elastic::Offer::from(static_cast<const std::int64_t*>(collective.input.data));
    auto* const all = static_cast<std::int64_t*>(collective.output.data);
    for (int rank = 0; rank < 2; ++rank) {
      const auto words = (rank == rank_ || !other_offer ? own : other_offer(own)).words();
      std::copy(words.begin(), words.end(), all + static_cast<std::size_t>(rank) * words.size());
    }
  }

  int rank_;
};

TEST(DeviceState, SyncChangesNothingIfARankIsLostBeforeAllHaveTheState) {
  for (const Device device : {Device{}, kGpu}) {
    std::int64_t value = 5;
    ElasticState state;
    state.add(value);
    state.commit();
    value = 6;
    OneOfTwo pair(device, 1);
    pair.broadcast_value = 7;
    pair.is_other_lost_at_barrier = true;  // after this rank has received the whole state
    EXPECT_THROW(state.sync(pair.group), RankFailure);
    EXPECT_EQ(pair.root, 0);
    EXPECT_EQ(value, 6);
    state.restore();
    EXPECT_EQ(value, 5);
    EXPECT_EQ(state.commits(), 1u);
    pair.is_other_lost_at_barrier = false;
    state.sync(pair.group);
    EXPECT_EQ(value, 7);
  }
}

TEST(DeviceState, OnlyOnGpusSyncTakesTheOlderCommitOfTheLastRound) {
  for (const Device device : {Device{}, kGpu}) {
    std::int64_t value = 5;
    ElasticState state;
    state.add(value);
    OneOfTwo pair(device, 0);
    state.sync(pair.group);
    state.commit();
    state.commit();
    pair.other_offer = [](elastic::Offer own) {
      --own.count;
      return own;
    };
    pair.broadcast_value = 4;
    state.sync(pair.group);
    EXPECT_EQ(pair.root, device == kGpu ? 1 : 0);
    EXPECT_EQ(value, device == kGpu ? 4 : 5);
    EXPECT_EQ(state.commits(), device == kGpu ? 1u : 2u);
  }
}

}  // namespace
}  // namespace ddp
