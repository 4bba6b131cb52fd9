// ddp-bench: its command line, its picture, its products of matrices, and the program itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "bench/command_line.hpp"
#include "bench/kernels.hpp"
#include "bench/model.hpp"
#include "bench/plot.hpp"
#include "bench/result.hpp"
#include "tests/integration/job.hpp"
#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::bench {
namespace {

using test::contents_of;
using test::Job;
using test::matches;
using test::occurrences;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

constexpr int kCores = 6;

Measure measure_of(const Words& words) { return std::get<Measure>(parse_command_line(words, kCores, "1.2")); }

TEST(DdpBenchCommandLine, TakesListsOfRanks) {
  EXPECT_THAT(measure_of({}).ranks, ElementsAre(1, 2, 4, 6));
  EXPECT_THAT(measure_of({"--ranks=1,2,4"}).ranks, ElementsAre(1, 2, 4));
  EXPECT_THAT(measure_of({"--ranks", "8,2-4,2"}).ranks, ElementsAre(1, 2, 3, 4, 8)) << "one rank is what they compare";
  EXPECT_THAT(std::get<Measure>(parse_command_line({}, 1, "")).ranks, ElementsAre(1));
  EXPECT_THAT(std::get<Measure>(parse_command_line({}, 0, "")).ranks, ElementsAre(1)) << "the number is not known";
}

TEST(DdpBenchCommandLine, TakesUnitsOfParameters) {
  EXPECT_EQ(measure_of({"--parameters=25M"}).settings.parameters, 25'000'000U);
  EXPECT_EQ(measure_of({"--parameters=1.5k"}).settings.parameters, 1'500U);
  EXPECT_EQ(measure_of({"--parameters=12345"}).settings.parameters, 12'345U);
}

TEST(DdpBenchCommandLine, RefusesWrongInput) {
  for (const Words& words : std::vector<Words>{{"--ranks="},
                                               {"--ranks=0"},
                                               {"--ranks=1,"},
                                               {"--ranks=4-2"},
                                               {"--ranks=2x"},
                                               {"--ranks=2000"},
                                               {"--ranks=-3"},
                                               {"--parameters=10"},
                                               {"--parameters=M"},
                                               {"--parameters=1e30"},
                                               {"--parameters=nan"},
                                               {"--steps=0"},
                                               {"--steps=10000"},
                                               {"--batch=0"},
                                               {"--batch=many"},
                                               {"--json"},
                                               {"--no-such-option"},
                                               {"stray"}}) {
    EXPECT_THROW(parse_command_line(words, kCores, ""), UsageError) << words[0];
  }
}

TEST(DdpBenchCommandLine, GivesRanksTheSameSettings) {
  const Settings settings{.parameters = 1234, .batch = 5, .steps = 6};
  const auto rank = std::get<RunRank>(parse_command_line(rank_arguments(settings), kCores, ""));
  EXPECT_EQ(rank.settings.parameters, 1234U);
  EXPECT_EQ(rank.settings.batch, 5U);
  EXPECT_EQ(rank.settings.steps, 6U);
}

TEST(DdpBenchCommandLine, ShowsHelpWithoutWhatItSaysToItsRanks) {
  const auto help = std::get<ShowText>(parse_command_line({"--help"}, kCores, "")).text;
  EXPECT_THAT(help, AllOf(HasSubstr("--ranks LIST"), HasSubstr("--svg FILE"), Not(HasSubstr("--as-rank"))));
  EXPECT_EQ(std::get<ShowText>(parse_command_line({"--version"}, kCores, "1.2")).text, "ddp-bench 1.2\n");
}

TEST(DdpBenchResult, ComesBackFromItsLine) {
  const Result result{3, 1000, 123.5, 1.5, 0.25, 0.125, 7};
  const Result back = from_line(to_line(result));
  EXPECT_EQ(to_line(back), to_line(result));
  EXPECT_EQ(back.ranks, 3);
  for (const char* text : {"", "{}", "{\"ranks\":\"1\"}", "hello"}) EXPECT_THROW(from_line(text), Error) << text;
}

TEST(DdpBenchPlot, MarksEachNumberOfRanksAndTheIdeal) {
  const std::string svg = speedup_plot({{1, 1}, {2, 1.9}, {4, 3.25}}, "a model");
  EXPECT_THAT(svg, AllOf(StartsWith("<svg xmlns="), HasSubstr(">a model</text>"), HasSubstr(">1.90</text>"),
                         HasSubstr(">3.25</text>"), HasSubstr(">ranks</text>"), HasSubstr(">speedup over one rank<"),
                         HasSubstr(">ideal</text>")));
  EXPECT_EQ(occurrences(svg, "<circle"), 4) << "one of the legend";
  EXPECT_EQ(occurrences(svg, "<text"), occurrences(svg, "</text>"));
  for (const int ranks : {1, 1024}) {
    EXPECT_THAT(speedup_plot({{1, 1}, {ranks, 0.5}}, ""), Not(AnyOf(HasSubstr("nan"), HasSubstr("inf")))) << ranks;
  }
}

// Beside the plain products, with widths and batches that fill no tile.
TEST(DdpBenchKernels, MultiplyMatrices) {
  for (const LayerShape shape : {LayerShape{1, 4}, LayerShape{7, 12}, LayerShape{4, 260}}) {
    const auto [batch, width] = shape;
    const auto filled = [](std::size_t count, std::size_t step) {
      std::vector<float> values(count);
      for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i * step % 7) - 3;
      return values;
    };
    const auto x = filled(batch * width, 3);
    const auto w = filled(width * width, 5);
    const auto g = filled(batch * width, 2);
    std::vector<float> y(batch * width), dw(width * width), dx(batch * width);
    layer_forward(shape, x.data(), w.data(), y.data());
    layer_weight_gradients(shape, x.data(), g.data(), dw.data());
    layer_input_gradients(shape, g.data(), w.data(), dx.data());
    std::vector<float> want_y(batch * width), want_dw(width * width), want_dx(batch * width);
    for (std::size_t b = 0; b < batch; ++b) {
      for (std::size_t i = 0; i < width; ++i) {
        for (std::size_t o = 0; o < width; ++o) {
          want_y[b * width + o] += x[b * width + i] * w[i * width + o];
          want_dw[i * width + o] += x[b * width + i] * g[b * width + o];
          want_dx[b * width + i] += w[i * width + o] * g[b * width + o];
        }
      }
    }
    EXPECT_EQ(y, want_y) << width;  // small whole numbers, which are exact in any order
    EXPECT_EQ(dw, want_dw) << width;
    EXPECT_EQ(dx, want_dx) << width;
  }
}

TEST(DdpBenchModel, LearnsAndHasTheSizeThatIsAskedFor) {
  for (const std::size_t parameters : {1'000UL, 20'000UL, 3'000'000UL}) {
    Model model(parameters, 3, 7);
    EXPECT_NEAR(static_cast<double>(model.parameter_count()), static_cast<double>(parameters),
                0.2 * static_cast<double>(parameters));
    if (parameters > 20'000) continue;  // it takes long if it is not optimised
    std::vector<std::vector<float>> gradients;
    std::vector<float*> pointers;
    for (const auto& parameter : model.parameters()) gradients.emplace_back(parameter.values.count);
    for (auto& gradient : gradients) pointers.push_back(gradient.data());
    std::vector<std::size_t> order;
    const double before = model.forward();
    model.backward(pointers, [&](std::size_t layer) { order.push_back(layer); });
    model.update(pointers);
    EXPECT_LT(model.forward(), before);
    EXPECT_THAT(order, SizeIs(gradients.size()));
    EXPECT_EQ(order.front(), gradients.size() - 1);
  }
}

class DdpBench : public ::testing::Test {
 protected:
  static Job::Options program() {
    Job::Options options;
    options.program = "ddp-bench";
    options.environment = {"DDPRUN_LOG_DIR=/nowhere", "DDPRUN_REDIRECTS=3", "PET_NPROC_PER_NODE=9"};
    return options;
  }
  test::ScratchDirectory scratch_;
};

TEST_F(DdpBench, MeasuresEachNumberOfRanksAndWritesItsFiles) {
  const std::string json_file = scratch_.path() / "bench.json";
  const std::string svg_file = scratch_.path() / "bench.svg";
  const std::string single_file = scratch_.path() / "single.json";
  Job job({"--ranks=2", "--parameters=20k", "--steps=4", "--json", json_file, "--svg", svg_file, "--save-single",
           single_file},
          program());
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), StartsWith("19.4k parameters, 16 samples per rank and step, 4 steps, "));
  const std::string number = " +([0-9.]+)";
  const auto rows =
      matches(job.out(), "\n +([12])" + number + number + number + " %" + number + number + number + number + number);
  ASSERT_THAT(rows, SizeIs(2)) << job.out();
  EXPECT_THAT(job.out(), HasSubstr("\n    1 "));
  EXPECT_EQ(job.err(), "");

  const auto json = nlohmann::json::parse(contents_of(json_file));
  ASSERT_THAT(json.at("results"), SizeIs(2));
  for (int i = 0; i < 2; ++i) {
    const auto& result = json.at("results")[static_cast<std::size_t>(i)];
    EXPECT_EQ(result.at("ranks"), i + 1);
    EXPECT_GT(result.at("samples_per_second"), 0);
    EXPECT_GT(result.at("step_ms"), 0);
    EXPECT_GT(result.at("barrier_us"), 0);
    EXPECT_DOUBLE_EQ(result.at("efficiency").get<double>() * (i + 1), result.at("speedup"));
  }
  EXPECT_EQ(nlohmann::json::parse(contents_of(single_file)).at("samples_per_second"),
            json.at("results")[0].at("samples_per_second"));
  EXPECT_THAT(contents_of(svg_file), AllOf(StartsWith("<svg "), HasSubstr("</svg>")));
}

TEST_F(DdpBench, WrongUseEndsWith2AndOneError) {
  for (const Words& words : std::vector<Words>{{"--ranks=none"}, {"--json", "/nowhere/file"}, {"--steps=0"}}) {
    Job job(words, program());
    EXPECT_EQ(job.wait(), 2);
    EXPECT_EQ(occurrences(job.err(), "error: "), 1) << job.err();
    EXPECT_THAT(job.err(), HasSubstr("\nwhere: the command line of ddp-bench\ntry:   "));
    EXPECT_EQ(job.out(), "");
  }
}

// With a stand-in for ddprun, which is looked for beside the program.
TEST_F(DdpBench, AMeasurementThatFailsEndsIt) {
  Job::Options options = program();
  options.program = scratch_.path() / "ddp-bench";
  std::filesystem::copy_file(test::built("ddp-bench"), options.program);
  const auto run = [&](const char* ddprun) {
    const std::filesystem::path path = scratch_.path() / "ddprun";
    std::filesystem::remove(path);
    if (ddprun != nullptr) std::ofstream(path) << "#!/bin/sh\n" << ddprun << "\n";
    if (ddprun != nullptr) std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    Job job({"--ranks=2"}, options);
    EXPECT_EQ(job.wait(), 1);
    EXPECT_EQ(job.out(), "");
    return job.err();
  };
  EXPECT_THAT(run(nullptr), HasSubstr("error: there is no ddprun beside "));
  EXPECT_THAT(run("echo error: why >&2; exit 3"),
              StartsWith("error: why\nerror: the measurement with 1 rank failed; the reason is above\n"));
  EXPECT_THAT(run("kill -9 $$"), HasSubstr("error: the measurement with 1 rank failed"));
  EXPECT_THAT(run("echo hello"), HasSubstr("error: rank 0 printed \"hello\" in place of a result\n"));
}

}  // namespace
}  // namespace ddp::bench
