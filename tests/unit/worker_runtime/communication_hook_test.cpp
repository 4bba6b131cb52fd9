#include "ddp/communication_hook.hpp"

#include "ddp/distributed_data_parallel.hpp"
#include "ddp/error.hpp"
#include "tests/unit/worker_runtime/rank_results.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ddp {
namespace {

using test::results_of_ranks;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Parameters of 4 and 3 elements, in a bucket each: {1}, {0}.
struct Model {
  std::vector<float> weight = std::vector<float>(4);
  std::vector<float> bias = std::vector<float>(3);

  std::vector<Parameter> parameters() { return {{"weight", {2, 2}, weight}, {"bias", {3}, bias}}; }
};

DistributedDataParallelOptions with(std::shared_ptr<CommunicationHook> hook) {
  DistributedDataParallelOptions options;
  options.first_bucket_cap_bytes = options.bucket_cap_bytes = 0;
  options.communication_hook = std::move(hook);
  return options;
}

float* floats(const MemoryRange& range) { return static_cast<float*>(range.data); }

void run_step(DistributedDataParallel& model, float gradient) {
  auto step = model.begin_step();
  for (const std::size_t p : {1, 0}) {
    for (std::size_t i = 0; i < model.gradient(p).count; ++i) floats(model.gradient(p))[i] += gradient;
    step.ready(p);
  }
  step.finish();
}

std::string text_of(DistributedDataParallel& model) {
  std::string text;
  for (const std::size_t p : {0, 1}) {
    for (std::size_t i = 0; i < model.gradient(p).count; ++i) {
      text += std::to_string(static_cast<int>(floats(model.gradient(p))[i])) + " ";
    }
  }
  return text;
}

// Sums in one stage the ranks, and in the next what all have then; keeps a record.
class TwoSums : public CommunicationHook {
 public:
  explicit TwoSums(std::string name = "two sums") : name_(std::move(name)) {}

  std::string describe() const override { return name_; }

  void begin(ProcessGroup&, const std::vector<GradientBucket>& buckets, CollectiveOptions) override {
    for (const GradientBucket& bucket : buckets) {
      record +=
          bucket.parameters.front().name + std::to_string(bucket.indices.front()) + (bucket.is_last ? " last; " : ", ");
    }
  }

  std::optional<Work> next(const HookCall& call) override {
    record += std::to_string(call.bucket.number) + "." + std::to_string(call.stage) + " ";
    if (call.stage == 2) return std::nullopt;
    return call.group.all_reduce_async(call.bucket.gradients, ReduceOp::sum, call.options);
  }

  std::string record;

 private:
  std::string name_;
};

TEST(CommunicationHook, GoesThroughItsStagesInTheSameOrderOnAllRanks) {
  const auto results = results_of_ranks(3, [](ProcessGroup world) {
    Model values;
    const auto hook = std::make_shared<TwoSums>();
    DistributedDataParallel model(world, values.parameters(), with(hook));
    run_step(model, 1.0F + static_cast<float>(world.rank()));
    return hook->record + "|" + text_of(model);
  });
  EXPECT_THAT(results, Each("bias1, weight0 last; 0.0 1.0 0.1 1.1 0.2 1.2 |18 18 18 18 18 18 18 "));
}

TEST(CommunicationHook, SeesTheBucketsAnewAfterARebuild) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    Model values;
    const auto hook = std::make_shared<TwoSums>();
    DistributedDataParallel model(world, values.parameters(), with(hook));
    auto step = model.begin_step();
    for (const std::size_t p : {0, 1}) step.ready(p);
    step.finish();
    model.rebuild_buckets();
    hook->record = hook->record.substr(hook->record.rfind("weight0, "));
    run_step(model, 1);
    return hook->record + "|" + text_of(model);
  });
  EXPECT_THAT(results, Each("weight0, bias1 last; 0.0 1.0 0.1 1.1 0.2 1.2 |4 4 4 4 4 4 4 "));
}

TEST(CommunicationHook, RunsItsStagesForAStepThatIsCancelled) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    Model values;
    DistributedDataParallel model(world, values.parameters(), with(std::make_shared<TwoSums>()));
    std::string text;
    try {
      auto step = model.begin_step();
      if (world.rank() == 0) {
        step.cancel();
      } else {
        for (const std::size_t p : {1, 0}) step.ready(p);
        step.finish();
      }
    } catch (const GradientError& error) {
      text = error.what();
    }
    run_step(model, 1);
    return text.substr(0, text.find('\n')) + "|" + text_of(model);
  });
  EXPECT_THAT(results, ElementsAre("|4 4 4 4 4 4 4 ", "rank 0 cancelled the step|4 4 4 4 4 4 4 "));
}

TEST(CommunicationHook, OfAnotherKindOnAnotherRankIsAMismatch) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) -> std::string {
    Model values;
    try {
      DistributedDataParallel(world, values.parameters(),
                              with(std::make_shared<TwoSums>(world.rank() == 0 ? "two sums" : "other")));
    } catch (const MismatchError& error) {
      return error.what();
    }
    return "no error";
  });
  EXPECT_THAT(results, Each(::testing::AllOf(HasSubstr("communication_hook = two sums"),
                                             HasSubstr("communication_hook = other"))));
}

TEST(CommunicationHook, ThatThrowsIsToldToTheOtherRanks) {
  struct Failing : TwoSums {
    std::optional<Work> next(const HookCall& call) override {
      if (call.stage == 1 && call.group.rank() == 1) throw std::runtime_error("no memory\nmore");
      return TwoSums::next(call);
    }
  };
  const auto results = results_of_ranks(2, [](ProcessGroup world) -> std::string {
    Model values;
    DistributedDataParallel model(world, values.parameters(), with(std::make_shared<Failing>()));
    try {
      run_step(model, 1);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "no error";
  });
  EXPECT_EQ(results[1], "no memory\nmore");
  EXPECT_THAT(results[0], HasSubstr("rank 1"));
}

}  // namespace
}  // namespace ddp
