// What tests of elastic_training_worker share: how the job is made, and what it prints and leaves in its folder.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/job.hpp"
#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {

constexpr std::uint64_t kSteps = 30, kSamples = 96, kBatch = 4;  // the last two as in elastic_training_worker.cpp

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

  // What was saved after this step, in the last round before `round` that did so: the sum of the digests of all ranks.
  double saved_state(std::uint64_t step, int round) const {
    std::map<int, double> of_rounds;
    std::ifstream file(scratch_.path() / "states");
    int its_round = 0;
    std::uint64_t its_step = 0;
    for (double digest = 0; file >> its_round >> its_step >> digest;) {
      if (its_step == step && its_round < round) of_rounds[its_round] += digest;
    }
    return of_rounds.empty() ? -1 : of_rounds.rbegin()->second;
  }

  // How often each sample was trained in steps that were not done again.
  std::map<std::int64_t, int> trained() const {
    std::map<std::uint64_t, std::string> round_of;  // the last that did a step
    for (const auto& [round, step, samples] : lines()) round_of[step] = round;
    std::map<std::int64_t, int> times;
    for (const auto& [round, step, samples] : lines()) {
      if (round_of[step] != round) continue;
      for (const std::int64_t sample : samples) ++times[sample];
    }
    return times;
  }

 private:
  struct Line {
    std::string round;
    std::uint64_t step = 0;
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

// Of the line that each rank of a round began with: what is said after `name=`. Of what a job prints.
inline std::map<int, double> of_ranks(const std::string& printed, int round, const std::string& name) {
  std::map<int, double> out;
  for (const auto& line :
       matches(printed, "begin round=" + std::to_string(round) + " rank=([0-9]+) [^;]*" + name + "=([0-9.]+) [^;]*;"))
    out[std::stoi(line[1])] = std::stod(line[2]);
  return out;
}

// The ranks of a round began with what was saved, however many ranks had saved it.
inline void expect_saved_state(const TrainingJob& run, const std::string& printed, int round) {
  const auto steps = of_ranks(printed, round, "step"), digests = of_ranks(printed, round, "state");
  ASSERT_FALSE(steps.empty()) << printed;
  double sum = 0;
  for (const auto& [rank, digest] : digests) sum += digest;
  EXPECT_EQ(sum, run.saved_state(static_cast<std::uint64_t>(steps.at(0)), round)) << "round " << round;
}

// Of the lines at the end; each once.
inline std::set<std::string> at_the_end(const std::string& printed, const std::string& name) {
  std::set<std::string> out;
  for (const auto& line : matches(printed, "end rank=[^;]* " + name + "=([0-9.]+) [^;]*;")) out.insert(line[1]);
  return out;
}

// Every sample of each whole epoch once, and none of the last one twice. padding_max: how many may be trained again, so
// that all ranks of a new round have as many samples of the rest of an epoch.
inline void expect_each_sample_once(const TrainingJob& run, std::size_t samples, int padding_max = 0) {
  const auto times = run.trained();
  EXPECT_EQ(times.size(), samples);
  const auto whole = static_cast<std::int64_t>(samples / kSamples * kSamples);
  for (std::int64_t sample = 0; sample < whole; ++sample) EXPECT_EQ(times.count(sample), 1u) << sample;
  int again = 0;
  for (const auto& [sample, count] : times) again += count - 1;
  EXPECT_LE(again, padding_max);
}

}  // namespace ddp::test
