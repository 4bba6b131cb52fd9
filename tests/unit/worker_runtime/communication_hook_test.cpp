#include "ddp/communication_hook.hpp"

#include "ddp/distributed_data_parallel.hpp"
#include "ddp/error.hpp"
#include "ddp/gradient_compression.hpp"
#include "ddp/local_sgd.hpp"
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

// Whatever it throws, the group ends, and later calls of the model throw.
TEST(CommunicationHook, ThatThrowsIsToldToTheOtherRanks) {
  struct Failing : TwoSums {
    explicit Failing(int kind) : kind_(kind) {}
    std::optional<Work> next(const HookCall& call) override {
      if (call.stage == 1 && call.group.rank() == 1) {
        if (kind_ == 0) throw std::runtime_error("no memory\nmore");
        if (kind_ == 1) throw GradientError("no memory\nmore");
        throw 5;
      }
      return TwoSums::next(call);
    }
    int kind_;
  };
  for (const int kind : {0, 1, 2}) {
    const auto results = results_of_ranks(2, [kind](ProcessGroup world) -> std::string {
      Model values;
      DistributedDataParallel model(world, values.parameters(), with(std::make_shared<Failing>(kind)));
      std::string text = "no error";
      try {
        run_step(model, 1);
      } catch (const std::exception& error) {
        text = error.what();
      } catch (int number) {
        text = std::to_string(number);
      }
      EXPECT_ANY_THROW(run_step(model, 1));
      EXPECT_NO_THROW(model.check()) << "no step is left to tell of";
      return text;
    });
    EXPECT_EQ(results[1], kind == 2 ? "5" : "no memory\nmore");
    EXPECT_THAT(results[0], HasSubstr("rank 1"));
  }
}

TEST(CommunicationHook, OfOneModelIsRefusedByAnother) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) -> std::string {
    Model values;
    const auto options = with(std::make_shared<TwoSums>());
    std::string text;
    {
      DistributedDataParallel model(world, values.parameters(), options);
      try {
        DistributedDataParallel(world, values.parameters(), options);
      } catch (const InvalidArgument& error) {
        text = error.what();
      }
      run_step(model, 1);
      text = text.substr(0, text.find('\n')) + "|" + text_of(model);
    }
    DistributedDataParallel(world, values.parameters(), options);  // the other one has ended
    return text;
  });
  EXPECT_THAT(results, Each("another model uses this communication hook|4 4 4 4 4 4 4 "));
}

TEST(CommunicationHook, ThatDoesNotAverageOverAllRanksIsRefusedWhereTheEngineDividesByActiveRanks) {
  const auto results = results_of_ranks(1, [](ProcessGroup world) {
    Model values;
    std::string text;
    for (const auto& hook : {std::shared_ptr<CommunicationHook>(std::make_shared<TwoSums>()), post_local_sgd()}) {
      auto options = with(hook);
      options.uneven_inputs = UnevenInputs::divide_by_active;
      try {
        DistributedDataParallel(world, values.parameters(), options);
      } catch (const InvalidArgument& error) {
        text += error.what();
      }
    }
    return text;
  });
  EXPECT_THAT(results, Each(AllOf(HasSubstr("with the hook two sums"), HasSubstr("with the hook post_local_sgd"),
                                  HasSubstr("are not means over all ranks"))));
}

TEST(CommunicationHook, GoesWithUnevenInputsAndAccumulation) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    Model values;
    auto options = with(std::make_shared<TwoSums>());
    options.uneven_inputs = UnevenInputs::divide_by_all;
    options.rebuild_buckets = RebuildBuckets::automatic;
    DistributedDataParallel model(world, values.parameters(), options);
    std::string text;
    for (int i = 0; i < 1 + world.rank(); ++i) {
      auto micro_batch = model.begin_step(Sync::off);
      floats(model.gradient(0))[0] += 10;
      micro_batch.ready(0);
      micro_batch.finish();
      run_step(model, 1);
      text += text_of(model) + "|";
    }
    model.join([&] { text += text_of(model) + "|"; });
    return text;
  });
  EXPECT_THAT(results, Each("44 4 4 4 4 4 4 |22 2 2 2 2 2 2 |"));
}

TEST(CommunicationHook, OptionsThatDifferLittleAreAMismatch) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) -> std::string {
    Model values;
    try {
      DistributedDataParallel(world, values.parameters(), with(power_sgd({.epsilon = world.rank() == 0 ? 0 : 1e-8})));
    } catch (const MismatchError&) {
      return "mismatch";
    }
    return "no error";
  });
  EXPECT_THAT(results, Each("mismatch"));
}

}  // namespace
}  // namespace ddp
