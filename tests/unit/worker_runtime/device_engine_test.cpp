// The gradient engine and elastic state over a stand-in for a device, whose memory is the host's.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <locale>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/integration/thrown_by.hpp"
#include "tests/unit/worker_runtime/stand_in_backend.hpp"
#include "worker_runtime/elastic/offer.hpp"
#include "worker_runtime/engine/model_buckets.hpp"

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
  test::StandInArithmetic* arithmetic = &backend->arithmetic();
  ProcessGroup group = test::group_over(std::move(backend), 0, 1);

  Device1() { calls->work = copy_to_output; }
};

class DeviceEngine : public ::testing::Test {
 protected:
  Device1 gpu_;
  std::vector<float> values_ = std::vector<float>(3);
  DistributedDataParallel model_{gpu_.group, parameters()};

  std::vector<Parameter> parameters() {
    return {{"a", {2}, {values_.data(), 2, DataType::float32, kGpu}},
            {"b", {1}, {values_.data() + 2, 1, DataType::float32, kGpu}}};
  }

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
  EXPECT_TRUE(gpu_.calls->aborts.empty()) << "all ranks are told, and none waits";
}

TEST_F(DeviceEngine, ARankWithoutMemoryForAStepLeavesNoOtherRankWaiting) {
  DistributedDataParallelOptions options;
  options.unused = Unused::keep;
  options.zero_gradients = false;
  DistributedDataParallel model(gpu_.group, parameters(), options);
  gpu_.memory->before_allocate = [] { throw Error("there is no memory"); };
  auto step = model.begin_step();
  step.ready(1);
  const auto error = thrown_by<Error>([&] { step.finish(); });  // copies the gradient of parameter 0
  ASSERT_TRUE(error);
  EXPECT_STREQ(error->what(), "there is no memory");
  ASSERT_EQ(gpu_.calls->aborts.size(), 1u);
  EXPECT_EQ(gpu_.calls->aborts[0].first, "a rank could not do its part of a step: there is no memory");
}

TEST_F(DeviceEngine, ABucketIsReducedAlsoIfTheLookAtAGradientFails) {
  DistributedDataParallelOptions options;
  options.check_finite = true;
  DistributedDataParallel model(gpu_.group, parameters(), options);
  auto step = model.begin_step();
  step.ready(0);
  const std::size_t submitted = gpu_.calls->submitted.size();
  gpu_.arithmetic->before_find_non_finite = [] { throw Error("the look failed"); };
  EXPECT_THROW(step.ready(1), Error);
  EXPECT_EQ(gpu_.calls->submitted.size(), submitted + 1) << "the other ranks wait for it";
  step.cancel();
  EXPECT_EQ(gpu_.calls->submitted.size(), submitted + 2) << "the flags";
}

TEST_F(DeviceEngine, ACheckOfGradientsThatFailsLeavesNoOtherRankWaiting) {
  DistributedDataParallelOptions options;
  options.check_finite = true;
  DistributedDataParallel model(gpu_.group, parameters(), options);
  gpu_.memory->before_zero = [](const MemoryRange& range) {
    if (range.type == DataType::int32) throw Error("there are no zeros");
  };
  EXPECT_THROW(static_cast<void>(model.begin_step()), Error);
  ASSERT_EQ(gpu_.calls->aborts.size(), 1u);
  EXPECT_EQ(gpu_.calls->aborts[0].first, "a rank could not do its part of a step: there are no zeros");

  Device1 other;
  DistributedDataParallel second(other.group, parameters(), options);
  auto step = second.begin_step();
  for (const std::size_t parameter : {0, 1}) step.ready(parameter);
  other.memory->before_begin_read = [] { throw Error("nothing can be read"); };
  EXPECT_THROW(step.finish(), Error);
  ASSERT_EQ(other.calls->aborts.size(), 1u);
  EXPECT_EQ(other.calls->aborts[0].first, "a rank could not do its part of a step: nothing can be read");
}

TEST_F(DeviceEngine, CheckFiniteWithoutKernelsIsRefusedWhenTheModelIsMade) {
  DistributedDataParallelOptions options;
  options.check_finite = true;
  gpu_.arithmetic->before_find_non_finite = [] { throw InvalidArgument("this libddp has no kernels"); };
  const auto error = thrown_by<InvalidArgument>([&] { DistributedDataParallel(gpu_.group, parameters(), options); });
  ASSERT_TRUE(error);
  EXPECT_STREQ(error->what(), "this libddp has no kernels");
}

TEST_F(DeviceEngine, CopiesOfGradientsThatNoRankUsedAreGivenBack) {
  DistributedDataParallelOptions options;
  options.unused = Unused::keep;
  options.zero_gradients = false;
  options.uneven_inputs = UnevenInputs::divide_by_all;
  DistributedDataParallel model(gpu_.group, parameters(), options);
  const auto& allocated = gpu_.memory->allocated;
  const auto copies = [&] {
    return std::count_if(allocated.begin(), allocated.end(), [](const auto& each) { return !each.expired(); });
  };
  const auto others = copies();
  auto step = model.begin_step();
  step.ready(1);
  step.finish();
  EXPECT_EQ(copies(), others + 1);
  model.rebuild_buckets();
  EXPECT_EQ(copies(), others);
  const std::size_t before = allocated.size();
  model.join();
  EXPECT_EQ(allocated.size(), before + 2);
  EXPECT_EQ(copies(), others);
}

TEST_F(DeviceEngine, NoHostCopyIsInAStep) {
  train({0, 1});
  const int copies = gpu_.memory->copies;
  for (int i = 0; i < 5; ++i) train({0, 1});
  EXPECT_EQ(gpu_.memory->copies, copies);
}

// The graph would keep the addresses of the buckets before.
TEST_F(DeviceEngine, ACaptureIsRefusedUntilTheBucketsOfACheckpointAreInPlace) {
  train({0, 1});
  gradient_engine::ModelBuckets::take(model_, "1048576 1048576 0 1");
  gradient_engine::ModelBuckets::use_taken(model_);
  gpu_.memory->is_capturing = true;
  const auto error = thrown_by<GradientError>([&] { static_cast<void>(model_.begin_step()); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), HasSubstr("before the buckets of a checkpoint are in place"));
  gpu_.memory->is_capturing = false;
  train({0, 1});
  EXPECT_THAT(model_.describe_buckets(), HasSubstr("a, b"));
  gpu_.memory->is_capturing = true;
  model_.begin_step().cancel();
}

TEST_F(DeviceEngine, BucketsOfACheckpointAreReadInEveryLocale) {
  struct Spaces : std::numpunct<char> {
    char do_thousands_sep() const override { return ' '; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Spaces));
  model_.rebuild_buckets();
  std::string text;
  EXPECT_NO_THROW({
    text = gradient_engine::ModelBuckets::text_of(model_);
    gradient_engine::ModelBuckets::take(model_, "1048576 1048576 0 1");
  });
  std::locale::global(before);
  EXPECT_EQ(text, "1048576 26214400 1 0");
}

TEST_F(DeviceEngine, DamagedBucketsOfACheckpointAreRefused) {
  std::string huge = "1 1";
  for (int i = 0; i < 1000; ++i) huge += " " + std::to_string(i);
  const struct {
    std::string text, want;
  } cases[] = {{"1 1 0 1 x", "is damaged"},
               {"1 1 0 1 ", "is damaged"},
               {"1 1 0 1x", "is damaged"},
               {" 1 1 0 1", "is damaged"},
               {"1 1 0  1", "is damaged"},
               {"-1 1 0 1", "is damaged"},
               {"1 -1 0 1", "is damaged"},
               {"1 18446744073709551616 0 1", "is damaged"},
               {"1 1 0 0", "is damaged"},
               {"1 1 0 2", "is damaged"},
               {"1", "is damaged"},
               {"1 1", "a model with 0 parameters, for a model with 2"},
               {"1 1 0", "a model with 1 parameters, for a model with 2"},
               {"1 1 0 1 2", "a model with 3 parameters, for a model with 2"},
               {huge, "a model with more than 2 parameters, for a model with 2"}};
  for (const auto& each : cases) {
    const auto error = thrown_by<CheckpointError>([&] { gradient_engine::ModelBuckets::take(model_, each.text); });
    ASSERT_TRUE(error) << each.text;
    EXPECT_THAT(error->what(), HasSubstr(each.want)) << each.text;
  }
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
