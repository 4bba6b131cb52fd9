#include "ddp/local_sgd.hpp"

#include "ddp/distributed_data_parallel.hpp"
#include "ddp/error.hpp"
#include "tests/unit/worker_runtime/copy_state.hpp"
#include "tests/unit/worker_runtime/rank_results.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace ddp {
namespace {

using test::results_of_ranks;
using ::testing::Each;
using ::testing::ElementsAre;

template <class T>
std::string list_of(const std::vector<T>& values) {
  std::ostringstream text;
  for (const T value : values) text << value << " ";
  return text.str();
}

TEST(PostLocalSgd, AveragesOverAllAtFirstAndThenOverTheSubgroup) {
  for (const bool has_subgroup : {true, false}) {
    const auto results = results_of_ranks(4, [has_subgroup](ProcessGroup world) {
      std::vector<float> first(3), second(2);
      PostLocalSgdOptions local{.start_step = 2};
      if (has_subgroup) local.subgroup = world.split(world.rank() / 2);
      DistributedDataParallelOptions options;
      options.first_bucket_cap_bytes = options.bucket_cap_bytes = 0;
      options.communication_hook = post_local_sgd(local);
      DistributedDataParallel model(world, {{"first", {3}, first}, {"second", {2}, second}}, options);
      std::string text;
      for (int i = 0; i < 4; ++i) {
        auto step = model.begin_step();
        for (const std::size_t p : {1, 0}) {
          auto* const gradient = model.gradient<float>(p).data();
          for (std::size_t e = 0; e < model.gradient(p).count; ++e) gradient[e] = static_cast<float>(2 * world.rank());
          step.ready(p);
        }
        step.finish();
        for (const std::size_t p : {1, 0}) text += std::to_string(static_cast<int>(*model.gradient<float>(p).data()));
        text += " ";
      }
      return text + std::to_string(*static_cast<std::int64_t*>(options.communication_hook->state()[0].values.data));
    });
    if (has_subgroup) {
      EXPECT_THAT(results, ElementsAre("33 33 11 11 3", "33 33 11 11 3", "33 33 55 55 3", "33 33 55 55 3"));
    } else {
      EXPECT_THAT(results, ElementsAre("33 33 00 00 3", "33 33 22 22 3", "33 33 44 44 3", "33 33 66 66 3"));
    }
  }
}

TEST(ParameterAverage, AveragesOverTheLastLevelThatIsDue) {
  const auto results = results_of_ranks(4, [](ProcessGroup world) {
    std::vector<float> values{static_cast<float>(world.rank())};
    std::vector<double> more(2);
    ParameterAverage average({{world.split(world.rank() / 2), 2}, {world, 4}},
                             {{"values", {1}, values}, {"more", {2}, more}}, {.start_step = 1});
    std::string text;
    for (int i = 0; i < 6; ++i) {
      values[0] = static_cast<float>(world.rank());
      more[1] = 2.0 * world.rank();
      text += average.step() ? "" : "-";
      text += std::to_string(static_cast<int>(2 * values[0])) + "," + std::to_string(static_cast<int>(more[1])) + " ";
    }
    return text;
  });
  EXPECT_THAT(results, ElementsAre("-0,0 3,3 -0,0 1,1 -0,0 3,3 ", "-2,2 3,3 -2,2 1,1 -2,2 3,3 ",
                                   "-4,4 3,3 -4,4 5,5 -4,4 3,3 ", "-6,6 3,3 -6,6 5,5 -6,6 3,3 "));
}

TEST(ParameterAverage, RefusesWhatItCannotAverage) {
  const auto results = results_of_ranks(1, [](ProcessGroup world) {
    std::vector<float> values(1);
    std::vector<std::int64_t> whole(1);
    EXPECT_THROW(ParameterAverage({}, {{"values", {1}, values}}), InvalidArgument);
    EXPECT_THROW(ParameterAverage({{world, 0}}, {{"values", {1}, values}}), InvalidArgument);
    EXPECT_THROW(ParameterAverage({{world, 2}, {world, 3}}, {{"values", {1}, values}}), InvalidArgument);
    EXPECT_THROW(ParameterAverage({{ProcessGroup(), 2}}, {{"values", {1}, values}}), InvalidArgument);
    EXPECT_THROW(ParameterAverage({{world, 2}}, {{"whole", {1}, whole}}), InvalidArgument);
    return "";
  });
  EXPECT_THAT(results, Each(""));
}

// The numbers are those of the formula in the header: momentum 0.5, rate 2, and means that fall by 1 and by 2.
TEST(DiLoCo, TakesWhatRanksChangedForAGradient) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    std::vector<float> values{10};
    std::vector<double> more{10};
    DiLoCo outer(world, {{"values", {1}, values}, {"more", {1}, more}},
                 {.period = 2, .outer_learning_rate = 2, .outer_momentum = 0.5});
    std::string text;
    for (int i = 0; i < 4; ++i) {
      const double change = i < 2 ? 0.5 : 1;
      values[0] -= static_cast<float>(change + world.rank() - 0.5);
      more[0] -= change + world.rank() - 0.5;
      if (outer.step()) text += list_of(values) + list_of(more) + "|";
    }
    for (const Parameter& each : outer.state()) text += each.name + " ";
    return text;
  });
  // change 1: momentum 1, 10 - 2 * (1 + 0.5) = 7. change 2: momentum 2.5, 7 - 2 * (2 + 1.25) = 0.5.
  EXPECT_THAT(results, Each("7 7 |0.5 0.5 |diloco.step diloco.values.last diloco.values.momentum diloco.more.last "
                            "diloco.more.momentum "));
}

TEST(DiLoCo, GoesOnFromItsState) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    const DiLoCoOptions options{.period = 3, .outer_learning_rate = 0.7, .outer_momentum = 0.9};
    const auto train = [&](std::vector<float>& values, DiLoCo& outer, int from, int to) {
      for (int i = from; i < to; ++i) {
        values[0] -= 0.1F * static_cast<float>(1 + i + world.rank());
        outer.step();
      }
    };
    std::vector<float> straight{1}, stopped{1};
    DiLoCo whole(world, {{"values", {1}, straight}}, options), begun(world, {{"values", {1}, stopped}}, options);
    train(straight, whole, 0, 10);
    train(stopped, begun, 0, 5);
    DiLoCo later(world, {{"values", {1}, stopped}}, options);
    EXPECT_EQ(test::copy_state(begun.state(), later.state()), "");
    train(stopped, later, 5, 10);
    return straight == stopped ? "same" : list_of(straight) + list_of(stopped);
  });
  EXPECT_THAT(results, Each("same"));
}

TEST(DiLoCo, RefusesOptionsOutOfRange) {
  const auto results = results_of_ranks(1, [](ProcessGroup world) {
    std::vector<float> values(1);
    const std::vector<Parameter> parameters{{"values", {1}, values}};
    EXPECT_THROW(DiLoCo(world, parameters, {.period = 0}), InvalidArgument);
    EXPECT_THROW(DiLoCo(world, parameters, {.outer_learning_rate = 0}), InvalidArgument);
    EXPECT_THROW(DiLoCo(world, parameters, {.outer_momentum = 1}), InvalidArgument);
    EXPECT_THROW(DiLoCo(ProcessGroup(), parameters), InvalidArgument);
    return "";
  });
  EXPECT_THAT(results, Each(""));
}

}  // namespace
}  // namespace ddp
