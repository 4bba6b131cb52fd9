#include <ddp/distributed_data_parallel.hpp>
#include <ddp/error.hpp>
#include <ddp/step_report.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "tests/text.hpp"
#include "tests/unit/worker_runtime/rank_results.hpp"

namespace {

using ddp::DistributedDataParallel;
using ddp::ProcessGroup;
using ddp::StepReporter;
using ddp::StepReportOptions;
using ddp::test::contents_of;
using ddp::test::results_of_ranks;
using ddp::test::ScratchDirectory;
using namespace std::chrono_literals;
using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::StartsWith;

// A rank's clock, which the test moves, and the lines that the rank prints.
struct Place {
  std::chrono::steady_clock::time_point now{};
  std::string lines{};

  StepReportOptions options(std::uint64_t every) {
    StepReportOptions options;
    options.every = every;
    options.clock = [this] { return now; };
    options.write = [this](const std::string& line) { lines += line + "\n"; };
    return options;
  }
};

// Steps in which rank 2 computes for 5 ms and the others for 2; the all-reduce takes 1 ms.
void make_steps(ProcessGroup& world, Place& place, StepReporter& report, int count) {
  for (int step = 0; step < count; ++step) {
    const auto begin = place.now;
    place.now += world.rank() == 2 ? 5ms : 2ms;
    const auto all_reduce = [&] {
      world.barrier();
      place.now = begin + (world.size() > 2 ? 5ms : 2ms) + 1ms;
    };
    report.finish(all_reduce, 8);
  }
}

TEST(StepReporter, NamesTheSlowestRankOnRank0) {
  const auto results = results_of_ranks(4, [](ProcessGroup world) {
    Place place;
    StepReporter report(world, place.options(3));
    make_steps(world, place, report, 8);
    return place.lines;
  });
  EXPECT_THAT(
      results,
      ElementsAre("step 3: 5333 samples/s; step 6.00 ms: compute 2.75, communication 1.00, waiting 2.25; rank 2 "
                  "was slowest in 2 of 2 steps, by 3.00 ms\n"
                  "step 6: 5333 samples/s; step 6.00 ms: compute 2.75, communication 1.00, waiting 2.25; rank 2 "
                  "was slowest in 3 of 3 steps, by 3.00 ms\n",
                  "", "", ""));
}

TEST(StepReporter, WritesJsonLines) {
  const auto results = results_of_ranks(3, [](ProcessGroup world) {
    Place place;
    StepReportOptions options = place.options(2);
    options.format = ddp::ReportFormat::json_lines;
    StepReporter report(world, options);
    make_steps(world, place, report, 3);
    return place.lines + ddp::to_json(*report.newest()).substr(0, 20);
  });
  const std::string newest = "{\"step\":2,\"steps\":1,";
  EXPECT_THAT(results, ElementsAre("{\"step\":2,\"steps\":1,\"samples_per_second\":4000.0,\"efficiency\":null,"
                                   "\"compute_ms\":3.0,\"communication_ms\":1.0,\"waiting_ms\":2.0,\"slowest_rank\":2,"
                                   "\"slowest_steps\":1,\"slowest_behind_ms\":3.0}\n" +
                                       newest,
                                   newest, newest));
}

TEST(StepReporter, MeasuresEfficiencyAgainstTheFileOfOneRank) {
  const ScratchDirectory scratch;
  const std::string file = scratch.path() / "single.json";
  const auto run = [&](ProcessGroup world) {
    Place place;
    StepReportOptions options = place.options(5);
    options.single_rank_file = file;
    StepReporter report(world, options);
    make_steps(world, place, report, 10);
    return place.lines.substr(0, place.lines.find(';'));
  };
  EXPECT_THAT(results_of_ranks(2, run), ElementsAre("step 5: 5333 samples/s", "")) << "there is no file yet";
  EXPECT_THAT(results_of_ranks(1, run), ElementsAre("step 5: 2667 samples/s"));
  EXPECT_THAT(contents_of(file), StartsWith("{\"ranks\":1,\"samples_per_second\":2666.66"));
  EXPECT_THAT(results_of_ranks(3, run), ElementsAre("step 5: 4000 samples/s, efficiency 50 %", "", ""));
}

TEST(StepReporter, RefusesWhatIsNoFigureOfOneRank) {
  const ScratchDirectory scratch;
  const std::string file = scratch.path() / "single.json";
  for (const std::string text :
       {"", "no JSON", "[1]", "{\"samples_per_second\":0}", "{\"samples_per_second\":\"1\"}"}) {
    std::ofstream(file) << text;
    const auto results = results_of_ranks(2, [&](ProcessGroup world) {
      StepReportOptions options;
      options.single_rank_file = file;
      std::string error;
      try {
        StepReporter(world, options);
      } catch (const ddp::InvalidArgument& thrown) {
        error = thrown.what();
      }
      world.barrier();
      return error;
    });
    EXPECT_THAT(results, ElementsAre(StartsWith(file + " has no samples per second of one rank\n"), "")) << text;
  }
}

TEST(StepReporter, RefusesOptionsThatAreOutOfRange) {
  EXPECT_THROW(StepReporter({}, {}), ddp::InvalidArgument);
  const auto results = results_of_ranks(1, [](ProcessGroup world) {
    StepReportOptions none, too_many, nothing_to_check;
    none.every = 0;
    too_many.every = 10'001;
    nothing_to_check.check_every = 1;
    for (const auto& options : {none, too_many, nothing_to_check}) {
      EXPECT_THROW(StepReporter(world, options), ddp::InvalidArgument);
    }
    return std::string();
  });
}

TEST(StepReporter, AStepThatFailsIsNotCounted) {
  const auto results = results_of_ranks(1, [](ProcessGroup world) {
    Place place;
    StepReporter report(world, place.options(2));
    make_steps(world, place, report, 1);
    place.now += 4ms;
    const auto fail = [] { throw ddp::GradientError("as all ranks"); };
    EXPECT_THROW(report.finish(fail, 8), ddp::GradientError);
    EXPECT_FALSE(report.newest());
    make_steps(world, place, report, 1);
    return place.lines;
  });
  EXPECT_THAT(results, ElementsAre("step 2: 1143 samples/s; step 7.00 ms: compute 6.00, communication 1.00\n"));
}

TEST(StepReporter, ComparesParametersEverySoManySteps) {
  const auto results = results_of_ranks(3, [](ProcessGroup world) {
    Place place;
    std::vector<float> weights(100);
    StepReportOptions options = place.options(100);
    options.check_every = 2;
    options.check_parameters = {{"weights", {100}, weights}};
    StepReporter report(world, options);
    make_steps(world, place, report, 3);
    if (world.rank() == 1) weights[50] = 1;
    try {
      make_steps(world, place, report, 1);
    } catch (const ddp::MismatchError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  });
  EXPECT_THAT(results, Each(StartsWith("parameter weights (index 0 of 1) is not the same on all ranks: rank 1 differs "
                                       "from the other 2 ranks\n")));
}

// With the gradient engine, and ranks that end at different times.
TEST(StepReporter, EndsStepsOfTheEngineAndCountsThoseOfJoin) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    std::vector<float> weights(4);
    ddp::DistributedDataParallelOptions engine;
    engine.uneven_inputs = ddp::UnevenInputs::divide_by_all;
    DistributedDataParallel model(world, {{"weights", {4}, weights}}, engine);
    Place place;
    StepReporter report(world, place.options(2));
    for (int batch = 0; batch < (world.rank() == 0 ? 4 : 1); ++batch) {
      auto step = model.begin_step();
      auto* gradient = model.gradient<float>(0).data();
      for (int i = 0; i < 4; ++i) gradient[i] = 2;
      step.ready(0);
      place.now += 2ms;
      EXPECT_EQ(report.finish(step, 6), batch == 0 ? 2 : 1);
      EXPECT_EQ(gradient[0], batch == 0 ? 2 : 1) << "the step is finished";
    }
    model.join([&] { report.add({}, 0); });
    return place.lines;
  });
  EXPECT_THAT(results, ElementsAre("step 2: 3000 samples/s; step 1.00 ms: compute 1.00, communication 0.000, waiting "
                                   "0.000; rank 0 was slowest in 1 of 1 steps, by 2.00 ms\n"
                                   "step 4: 3000 samples/s; step 1.00 ms: compute 1.00, communication 0.000, waiting "
                                   "0.000; rank 0 was slowest in 2 of 2 steps, by 2.00 ms\n",
                                   IsEmpty()));
}

}  // namespace
