// What changes from step to step in training, inside run_elastic under the real ddprun: the state of a hook, the shards
// of an optimizer and the position of a sampler, in checkpoints in memory and on disk. Ranks are killed at chosen
// steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/integration/free_port.hpp"
#include "tests/integration/job.hpp"
#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kSteps = 30, kSamples = 96;  // the second as in elastic_training_worker.cpp

// One job, and what it leaves in its folder.
class TrainingJob {
 public:
  TrainingJob(std::string method, std::string store) : method_(std::move(method)), store_(std::move(store)) {}

  // What the worker is to do; its header has the names.
  void make(const std::string& file) const { std::ofstream(scratch_.path() / file) << '\n'; }
  void remove(const std::string& file) const { std::filesystem::remove(scratch_.path() / file); }

  std::vector<std::string> arguments(std::vector<std::string> options) const {
    options.insert(options.end(), {built("elastic_training_worker"), scratch_.path().string(), method_, store_,
                                   std::to_string(kSteps)});
    return options;
  }

  double is_in_memory() const { return store_ == "memory" ? 1 : 0; }

  // The newest step that was committed in this round or before.
  std::uint64_t last_commit(int until_round) const {
    std::uint64_t last = 0;
    std::ifstream file(scratch_.path() / "commits");
    int round = 0;
    for (std::uint64_t step = 0; file >> round >> step;) {
      if (round <= until_round) last = std::max(last, step);
    }
    return last;
  }

  // How often each sample was trained in steps that were not done again.
  std::map<std::int64_t, int> trained() const {
    std::map<std::uint64_t, std::uint64_t> round_of;  // the last that did a step
    for (const auto& [round, step, samples] : lines()) round_of[step] = std::max(round_of[step], round);
    std::map<std::int64_t, int> times;
    for (const auto& [round, step, samples] : lines()) {
      if (round_of[step] != round) continue;
      for (const std::int64_t sample : samples) ++times[sample];
    }
    return times;
  }

 private:
  struct Line {
    std::uint64_t round = 0, step = 0;
    std::vector<std::int64_t> samples;
  };

  std::vector<Line> lines() const {
    std::vector<Line> all;
    std::ifstream file(scratch_.path() / "samples");
    for (std::string text; std::getline(file, text);) {
      std::istringstream words(text);
      Line line;
      words >> line.round >> line.step;
      for (std::int64_t sample = 0; words >> sample;) line.samples.push_back(sample);
      all.push_back(std::move(line));
    }
    return all;
  }

  ScratchDirectory scratch_;
  std::string method_, store_;
};

// Of the line that each rank of a round began with: what is said after `name=`.
std::map<int, double> of_ranks(const Job& job, int round, const std::string& name) {
  std::map<int, double> out;
  for (const auto& line :
       matches(job.out(), "begin round=" + std::to_string(round) + " rank=([0-9]+) [^;]*" + name + "=([0-9.]+) [^;]*;"))
    out[std::stoi(line[1])] = std::stod(line[2]);
  return out;
}

// Of the lines at the end; each once.
std::set<std::string> at_the_end(const Job& job, const std::string& name) {
  std::set<std::string> out;
  for (const auto& line : matches(job.out(), "end rank=[^;]* " + name + "=([0-9.]+) [^;]*;")) out.insert(line[1]);
  return out;
}

// Every sample of each whole epoch once, and none of the last one twice.
void expect_each_sample_once(const TrainingJob& run, std::size_t samples) {
  const auto times = run.trained();
  EXPECT_EQ(times.size(), samples);
  const auto whole = static_cast<std::int64_t>(samples / kSamples * kSamples);
  for (std::int64_t sample = 0; sample < whole; ++sample) EXPECT_EQ(times.count(sample), 1u) << sample;
  for (const auto& [sample, count] : times) EXPECT_EQ(count, 1) << sample;
}

// Parameters of training without any failure, on three ranks.
std::string bits_of_undisturbed(const std::string& method) {
  const TrainingJob run(method, "memory");
  Job job(run.arguments({"--nproc-per-node=3"}));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(at_the_end(job, "bits").size(), 1u);
  return *at_the_end(job, "bits").begin();
}

struct Case {
  const char* method;
  const char* store;

  friend void PrintTo(const Case& of, std::ostream* out) { *out << of.method << " " << of.store; }
};

class ElasticTraining : public ::testing::TestWithParam<Case> {};

TEST_P(ElasticTraining, KilledRanksCostNoCommittedStepAndNoSampleAndChangeNoBit) {
  const struct {
    const char* place;
    int step, rank;
  } deaths[] = {{"committed", 5, 1}, {"saving", 9, 0}, {"saved", 14, 2}, {"step", 17, 1}, {"saved", 22, 0}};
  const TrainingJob run(GetParam().method, GetParam().store);
  for (const auto& death : deaths) {
    run.make(std::string(death.place) + "_" + std::to_string(death.step) + "_" + std::to_string(death.rank));
  }
  Job job(run.arguments({"--nproc-per-node=3", "--max-restarts=20"}));
  ASSERT_EQ(job.wait(), 0) << job.out() << job.err();
  int round = 0;
  for (const auto& death : deaths) {
    SCOPED_TRACE(std::string(death.place) + " " + std::to_string(death.step));
    const auto before = of_ranks(job, round, "pid");
    const std::uint64_t committed = run.last_commit(round++);
    const auto after = of_ranks(job, round, "pid");
    ASSERT_EQ(after.size(), 3u) << job.out() << job.err();
    for (const auto& [rank, pid] : after) EXPECT_EQ(pid == before.at(rank), rank != death.rank) << rank;
    for (const auto& [rank, step] : of_ranks(job, round, "step")) EXPECT_GE(step, static_cast<double>(committed));
    for (const auto& [rank, own] : of_ranks(job, round, "own")) EXPECT_EQ(own, 1) << rank;
    for (const auto& [rank, memory] : of_ranks(job, round, "memory")) EXPECT_EQ(memory, run.is_in_memory()) << rank;
  }
  EXPECT_EQ(run.last_commit(round), kSteps);
  expect_each_sample_once(run, kSteps * 3 * 4);
  EXPECT_EQ(at_the_end(job, "bits"), std::set<std::string>{bits_of_undisturbed(GetParam().method)});
  EXPECT_THAT(job.err(), Not(HasSubstr("error: "))) << "of a checkpoint that the end of a round has stopped";
  EXPECT_TRUE(job.is_gone_within());
}

INSTANTIATE_TEST_SUITE_P(Features, ElasticTraining,
                         ::testing::Values(Case{"power_sgd", "memory"}, Case{"zero2", "memory"}, Case{"zero2", "disk"}),
                         [](const auto& info) { return std::string(info.param.method) + "_" + info.param.store; });

TEST(ElasticTrainingNodes, ANodeThatIsLostLeavesItsShardsToTheOthers) {
  constexpr int kStep = 11;  // in the second epoch
  const TrainingJob run("zero2", "memory");
  const std::string hold = "hold_" + std::to_string(kStep);
  run.make(hold);
  const auto port = free_port();
  Job zero(run.arguments(elastic_node("1:2", 0, port, 2))), one(run.arguments(elastic_node("1:2", 1, port, 1)));
  ASSERT_TRUE(zero.prints("holds ;")) << zero.out() << zero.err();
  const auto before = of_ranks(zero, 0, "pid");
  ASSERT_EQ(before.size(), 2u) << "of three ranks";
  one.kill(SIGKILL);
  EXPECT_TRUE(one.is_gone_within());
  const std::uint64_t committed = run.last_commit(0);
  run.remove(hold);
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  EXPECT_EQ(of_ranks(zero, 1, "pid"), before);
  for (const auto& [rank, size] : of_ranks(zero, 1, "size")) EXPECT_EQ(size, 2) << rank;
  for (const auto& [rank, step] : of_ranks(zero, 1, "step")) EXPECT_GE(step, static_cast<double>(committed)) << rank;
  for (const auto& [rank, memory] : of_ranks(zero, 1, "memory")) EXPECT_EQ(memory, 1) << rank;
  for (const auto& [rank, own] : of_ranks(zero, 1, "own")) EXPECT_EQ(own, 0) << rank;
  expect_each_sample_once(run, run.trained().size());
  EXPECT_EQ(at_the_end(zero, "bits").size(), 1u);
  const double first = of_ranks(zero, 0, "loss").at(0), middle = of_ranks(zero, 1, "loss").at(0);
  const double last = std::stod(*at_the_end(zero, "loss").begin());
  EXPECT_LT(middle, 0.9 * first);
  EXPECT_LT(last, 0.9 * middle);
}

}  // namespace
}  // namespace ddp::test
