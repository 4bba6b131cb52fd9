// examples/train_mlp_cuda from outside, over the stand-in: its own sources but for the kernels and cuBLAS, which are
// plain loops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/integration/job.hpp"
#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace {

using ddp::test::built;
using ddp::test::contents_of;
using ddp::test::Job;
using ddp::test::occurrences;
using ddp::test::ScratchDirectory;
using nlohmann::json;
using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

const std::string kProgram = built("fake_train_mlp_cuda");

// Of every line that has the label.
std::vector<double> numbers_after(const std::string& text, const std::string& label) {
  std::vector<double> numbers;
  for (auto at = text.find(label); at != std::string::npos; at = text.find(label, at + 1))
    numbers.push_back(std::stod(text.substr(at + label.size())));
  return numbers;
}

struct Result {
  int code = 0;
  std::string out, err;
};

class Example : public testing::Test {
 protected:
  Result run(const std::string& program, const Words& arguments, Words environment) {
    environment.push_back("DDP_NCCL_LIBRARY=" DDP_FAKE_NCCL);
    Job job(arguments, {.environment = environment, .program = program, .patience = std::chrono::seconds(120)});
    const int code = job.wait();
    return {code, job.out(), job.err()};
  }

  Result alone(const Words& arguments, const Words& environment = {}) { return run(kProgram, arguments, environment); }

  Result ranks(int count, const Words& arguments, const Words& environment = {}) {
    Words words{"--standalone", "--nproc-per-node=" + std::to_string(count), kProgram};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run("ddprun", words, environment);
  }

  // `script` sets what is rank's own in the environment, before the program begins.
  Result ranks_after(const std::string& script, int count, const Words& arguments, const Words& environment = {}) {
    Words words{
        "--standalone", "--nproc-per-node=" + std::to_string(count), "sh", "-c", script + "; exec \"$0\" \"$@\"",
        kProgram};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run("ddprun", words, environment);
  }

  std::string in_scratch(const std::string& name) const { return (scratch_.path() / name).string(); }

  ScratchDirectory scratch_;
};

TEST_F(Example, ReachesItsAccuracyWithOneAndThreeRanks) {
  for (const int count : {1, 3}) {
    SCOPED_TRACE(std::to_string(count) + " ranks");
    const Result result = ranks(count, {});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(numbers_after(result.out, ": loss "), SizeIs(20));
    const auto accuracy = numbers_after(result.out, "accuracy on 114 other samples: ");
    ASSERT_THAT(accuracy, SizeIs(1)) << "not one rank prints: " << result.out;
    EXPECT_GE(accuracy[0], 95) << result.out;
    EXPECT_THAT(result.err, IsEmpty());
  }
}

// The sampler gives three ranks together, step for step, the samples that it gives to one.
TEST_F(Example, ThreeRanksTrainAsOneWithAllTheirSamples) {
  const Words common{"--epochs=4", "--no-tf32", "--seed=7"};
  const auto with_batch = [&](const char* batch) {
    Words words = common;
    words.emplace_back(batch);
    return words;
  };
  const Result one = ranks(1, with_batch("--batch-size=24"));
  const Result three = ranks(3, with_batch("--batch-size=8"));
  const auto want = numbers_after(one.out, ": loss "), got = numbers_after(three.out, ": loss ");
  ASSERT_THAT(want, SizeIs(4)) << one.err;
  ASSERT_THAT(got, SizeIs(4)) << three.err;
  for (std::size_t epoch = 0; epoch < 4; ++epoch) EXPECT_NEAR(got[epoch], want[epoch], 1e-5) << "epoch " << epoch;
  EXPECT_EQ(numbers_after(three.out, "other samples: "), numbers_after(one.out, "other samples: "));
}

TEST_F(Example, TheSameRunGivesTheSameLosses) {
  const Words arguments{"--epochs=3"};
  const auto losses = [](const Result& result) { return numbers_after(result.out, ": loss "); };
  const auto first = losses(ranks(3, arguments));
  EXPECT_THAT(first, SizeIs(3));
  EXPECT_EQ(losses(ranks(3, arguments)), first);
  EXPECT_NE(losses(ranks(3, {"--epochs=3", "--seed=1"})), first);
  EXPECT_NE(losses(ranks(3, {"--epochs=3", "--learning-rate=0.1"})), first);
  EXPECT_NE(losses(ranks(3, {"--epochs=3", "--no-tf32"})), first);
}

TEST_F(Example, TrainsOnMadeUpSamplesAtAnyWidthAndDepth) {
  for (const char* layers : {"--layers=1", "--layers=2", "--layers=5"}) {
    SCOPED_TRACE(layers);
    const Result result = ranks(2, {"--synthetic", "--width=33", layers, "--batch-size=5", "--epochs=2"});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(numbers_after(result.out, ": loss "), SizeIs(2));
    EXPECT_THAT(result.out, HasSubstr("\naccuracy on 5 other samples: "));
  }
}

// With 56 steps as rarely as with 4: what is left belongs to the program's begin and end, and to those of an epoch. The
// pinned memory that flags travel through is given back at the end, which waits once for each block; how many blocks
// there are, at most a few, depends on how far the device was behind.
TEST_F(Example, MakesTheHostWaitForNothingWithinAnEpoch) {
  const auto counted = [&](const std::string& name, const Words& arguments) {
    const Result result = alone(arguments, {"FAKE_GPU_REPORT=" + in_scratch(name)});
    EXPECT_EQ(result.code, 0) << result.err;
    for (const auto& entry : fs::directory_iterator(scratch_.path())) {
      if (entry.path().stem() == name) return contents_of(entry.path());
    }
    return std::string();
  };
  const std::string many = counted("many", {"--epochs=2", "--batch-size=8"});
  const std::string few = counted("few", {"--epochs=2", "--batch-size=100"});
  const std::string label = "host synchronisation: ";
  ASSERT_THAT(many, HasSubstr(label));
  EXPECT_NEAR(numbers_after(many, label).at(0), numbers_after(few, label).at(0), 5);
  EXPECT_GT(numbers_after(many, "ncclAllReduce: ").at(0), 100);
  EXPECT_GT(numbers_after(many, "cudaLaunchKernel: ").at(0), 1'000);
  EXPECT_LT(numbers_after(few, "ncclAllReduce: ").at(0), 30);
}

struct Span {
  std::string track, name;
  double begin = 0, end = 0;  // microseconds
};

// Checks the file's form as far as viewers need it.
std::vector<Span> spans_of(const std::string& path, int rank) {
  const json trace = json::parse(contents_of(path));
  std::map<int, std::string> tracks;
  std::vector<Span> spans;
  for (const json& event : trace.at("traceEvents")) {
    EXPECT_EQ(event.at("pid"), rank);
    if (event.at("name") == "thread_name") tracks[event.at("tid")] = event.at("args").at("name");
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts"), length = event.at("dur");
    EXPECT_GE(length, 0);
    spans.push_back({tracks.at(event.at("tid")), event.at("name"), begin, begin + length});
  }
  return spans;
}

std::vector<Span> named(const std::vector<Span>& spans, const std::string& begin) {
  std::vector<Span> found;
  std::copy_if(spans.begin(), spans.end(), std::back_inserter(found),
               [&](const Span& span) { return span.name.compare(0, begin.size(), begin) == 0; });
  return found;
}

// Whether there are spans on the track, one after the other as they are in the file.
bool is_in_order(const std::vector<Span>& spans, const std::string& track) {
  double end = 0;
  for (const Span& span : spans) {
    if (span.track != track) continue;
    if (span.begin < end - 0.0005) return false;  // times are whole nanoseconds, but the sum of two doubles is not
    end = span.end;
  }
  return end > 0;
}

// One file for each rank; layer by layer as it was on the stream; and all-reduces at work while backward still was. How
// often that happens is up to the machine here, so only that it does is checked.
TEST_F(Example, TracesStepsLayersAndAllReducesThatOverlapBackward) {
  const Result result = ranks(2, {"--synthetic", "--width=520", "--layers=4", "--batch-size=4", "--epochs=1",
                                  "--trace=" + in_scratch("timeline.json")});
  ASSERT_EQ(result.code, 0) << result.err;
  for (const int rank : {0, 1}) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    const auto spans = spans_of(in_scratch("timeline." + std::to_string(rank) + ".json"), rank);
    EXPECT_THAT(named(spans, "step"), SizeIs(16));
    EXPECT_THAT(named(spans, "optimizer"), SizeIs(16));
    EXPECT_THAT(named(spans, "forward layer3"), SizeIs(16 + 1));  // and once for the accuracy
    const auto first_layer = named(spans, "backward layer1"), last_layer = named(spans, "backward layer4");
    ASSERT_THAT(first_layer, SizeIs(16));
    ASSERT_THAT(last_layer, SizeIs(16));
    EXPECT_TRUE(is_in_order(spans, "compute stream")) << "a viewer would draw one span over another";

    const auto all_reduces = named(spans, "all_reduce");
    EXPECT_GE(all_reduces.size(), 2 * 16U + 1) << "the last ones are missing";
    int overlapping = 0;
    for (std::size_t step = 0; step < 16; ++step) {
      EXPECT_LT(last_layer[step].begin, first_layer[step].begin);
      overlapping += static_cast<int>(std::count_if(all_reduces.begin(), all_reduces.end(), [&](const Span& span) {
        return span.begin > last_layer[step].begin && span.begin < first_layer[step].end;
      }));
    }
    EXPECT_GT(overlapping, 0);
  }
}

TEST_F(Example, ATraceThatCannotBeWrittenIsAnErrorBeforeTraining) {
  const Result result = alone({"--trace=" + in_scratch("nowhere/trace.json")});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, AllOf(StartsWith("error: "), HasSubstr("nowhere/trace.0.json"), HasSubstr("\ntry:   ")));
  EXPECT_THAT(result.out, IsEmpty());
}

TEST_F(Example, WrongInputEndsWith2AndSaysWhatWhereAndWhatToTry) {
  const struct {
    Words arguments;
    std::string want;
  } cases[] = {
      {{"--batch-size=0"}, "error: --batch-size is 0"},
      {{"--batch-size=-8"}, "error: "},
      {{"--batch-size=many"}, "error: "},
      {{"--batch-size=456"},
       "error: the training part has 455 samples, too few for one step of 456 on each of 1 workers"},
      {{"--width=0"}, "error: --width is 0, not 1 to 65536"},
      {{"--width=65537"}, "error: --width is 65537, not 1 to 65536"},
      {{"--layers=0"}, "error: --layers is 0"},
      {{"--epochs=0"}, "error: --epochs is 0"},
      {{"--learning-rate=0"}, "error: --learning-rate is 0"},
      {{"--learning-rate=nan"}, "error: --learning-rate is nan"},
      {{"--seed=1.5"}, "error: "},
      {{"--bogus"}, "error: "},
      {{"stray"}, "error: "},
      {{"--data="}, "error: "},
      {{"--data=nowhere.csv"}, "error: can't read the data: No such file or directory\nwhere: nowhere.csv\ntry:   "},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.arguments[0]);
    const Result result = alone(c.arguments);
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, AllOf(StartsWith(c.want), HasSubstr("\nwhere: "), HasSubstr("\ntry:   ")));
    EXPECT_EQ(occurrences(result.err, "error: "), 1) << result.err;
    EXPECT_THAT(result.out, IsEmpty());
  }
}

TEST_F(Example, HelpNeedsNoGpuAndIsPrintedOnce) {
  const Result result = ranks(2, {"--help"}, {"FAKE_GPU_DEVICES=0"});
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* flag : {"--data", "--synthetic", "--width", "--layers", "--batch-size", "--epochs",
                           "--learning-rate", "--seed", "--no-tf32", "--share-device", "--trace"}) {
    EXPECT_EQ(occurrences(result.out, std::string("\n  ") + flag), 1) << flag << "\n" << result.out;
  }
}

TEST_F(Example, WithoutAGpuSaysSo) {
  const Result result = alone({}, {"FAKE_GPU_DEVICES=0"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, AllOf(StartsWith("error: the backend nccl needs a GPU"), HasSubstr("\ntry:   ")));
}

TEST_F(Example, RanksShareAGpuOnlyWhereThatIsMeant) {
  const Words one_gpu{"FAKE_GPU_DEVICES=1", "NCCL_DEBUG="};
  const Result refused = ranks(2, {}, one_gpu);
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("error: ranks 0 and 1 are both on GPU-"));
  const Result shared = ranks_after("export NCCL_HOSTID=host$RANK", 2, {"--share-device", "--epochs=1"}, one_gpu);
  EXPECT_EQ(shared.code, 0) << shared.err;
  EXPECT_THAT(shared.out, HasSubstr("\naccuracy on "));
}

// The rank itself says it, and the other one that it cancelled the step. Either may be the first to end, and the
// launcher then stops the other one.
TEST_F(Example, AFailureOfOneRankIsToldByThatRank) {
  const Result result =
      ranks_after("if [ $RANK = 1 ]; then export FAKE_GPU_FAULTS='cudaLaunchKernel:300:return:2'; fi", 2, {});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, AnyOf(HasSubstr("error: multiplying matrices: CUBLAS_STATUS_EXECUTION_FAILED\n"),
                                HasSubstr("error: rank 1 cancelled the step\n")));
  EXPECT_THAT(result.err, AnyOf(HasSubstr("error: rank 1 ended with exit code 1"),
                                HasSubstr("\n  | error: rank 1 cancelled the step\n")));
  EXPECT_THAT(result.out, Not(HasSubstr("accuracy")));
}

// What a failed collective leaves is undefined: no loss and no accuracy may be made of it.
TEST_F(Example, ACollectiveThatFailsInTheLastStepEndsTheRunWithAnError) {
  const Result good = alone({"--epochs=1"}, {"FAKE_GPU_REPORT=" + in_scratch("calls")});
  ASSERT_EQ(good.code, 0) << good.err;
  double calls = 0;
  for (const auto& entry : fs::directory_iterator(scratch_.path()))
    calls = numbers_after(contents_of(entry.path()), "ncclAllReduce: ")[0];
  for (const int before_last : {0, 1, 2}) {  // the last is that of the loss
    SCOPED_TRACE(before_last);
    const std::string fault = "ncclAllReduce:" + std::to_string(static_cast<int>(calls) - before_last) + ":async:6";
    const Result result = alone({"--epochs=1"}, {"FAKE_GPU_FAULTS=" + fault});
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.out, Not(HasSubstr("accuracy")));
    EXPECT_EQ(occurrences(result.err, "error: "), 1) << result.err;
  }
}

}  // namespace
