// run_elastic under the real ddprun: workers are killed and stopped from outside, the others live on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/integration/elastic_place.hpp"
#include "tests/integration/free_port.hpp"
#include "tests/integration/job.hpp"
#include "tests/sanitized.hpp"
#include "tests/text.hpp"

namespace ddp::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr std::size_t kCount = 4096;  // as in elastic_worker.cpp; tests/nccl has another worker that does the same

class Elastic : public ::testing::Test {
 protected:
  Elastic() {
    std::string name = std::filesystem::temp_directory_path() / "elastic_XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~Elastic() override { std::filesystem::remove_all(folder_); }

  std::string folder() const { return folder_; }
  void make(const std::string& name) const { std::ofstream(folder_ + "/" + name) << '\n'; }

  std::vector<std::string> arguments(std::vector<std::string> options, const std::string& timeout_ms = "60000") const {
    options.insert(options.end(), {built(elastic_place().worker), folder_, timeout_ms});
    return options;
  }

  // "STEP SIZE" of every commit.
  std::vector<std::pair<std::int64_t, int>> commits() const {
    std::vector<std::pair<std::int64_t, int>> out;
    std::ifstream file(folder_ + "/commits");
    for (std::pair<std::int64_t, int> commit; file >> commit.first >> commit.second;) out.push_back(commit);
    return out;
  }

  // Until training has gone on by a few steps.
  void expect_progress() const {
    const auto before = commits().size();
    EXPECT_TRUE(becomes_true([&] { return commits().size() >= before + 3; }));
  }

  // What all ranks must have in the end, made from the commits alone: of each step the last one counts.
  std::string recomputed() const {
    std::map<std::int64_t, int> size_at;
    for (const auto& [step, size] : commits()) size_at[step] = size;
    std::vector<std::uint64_t> parameters(kCount);
    for (const auto& [step, size] : size_at)
      for (std::size_t i = 1; i < kCount; ++i)
        parameters[i] =
            parameters[i] * 3 + static_cast<std::uint64_t>(((step - 1) * 1000 + static_cast<std::int64_t>(i)) * size);
    std::uint64_t sum = 0;
    for (const auto value : parameters) sum = sum * 31 + value;
    return "step=" + std::to_string(size_at.size()) + " parameters=" + std::to_string(sum) + " ";
  }

  std::string folder_;
};

// Of the lines "begin round=N rank=R pid=P ...": what each rank of a round said after `name=`.
std::map<int, long> of_ranks(const Job& job, int round, const std::string& name) {
  std::map<int, long> out;
  for (const auto& line :
       matches(job.out(), "begin round=" + std::to_string(round) + " rank=([0-9]+) [^;]*" + name + "=([0-9]+)[^;]*;"))
    out[std::stoi(line[1])] = std::stol(line[2]);
  return out;
}

std::map<int, long> pids_of(Job& job, int round, int size) {
  EXPECT_TRUE(job.prints("begin round=" + std::to_string(round) + " ", size)) << job.out() << job.err();
  return of_ranks(job, round, "pid");
}

int count_of(const std::string& text, const std::string& what) {
  int count = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST_F(Elastic, KilledWorkerAgainAndAgain_TheOthersLiveOnAndNothingCommittedIsLost) {
  constexpr int kSize = 4;
  const int rounds = elastic_place().kills;
  Job job(arguments({"--nproc-per-node=4", "--max-restarts=100"}));
  auto pids = pids_of(job, 0, kSize);
  for (int round = 0; round < rounds; ++round) {
    ASSERT_EQ(pids.size(), static_cast<std::size_t>(kSize)) << job.err();
    expect_progress();
    const int victim = round % kSize;
    ::kill(static_cast<pid_t>(pids[victim]), SIGKILL);
    const auto next = pids_of(job, round + 1, kSize);
    for (const auto& [rank, pid] : next)
      EXPECT_EQ(pid == pids[rank], rank != victim) << "round " << round + 1 << " rank " << rank;
    pids = next;
    ASSERT_FALSE(HasFailure()) << job.out() << job.err();
  }
  expect_progress();
  make("stop");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(count_of(job.out(), recomputed()), kSize) << recomputed() << job.out();
  EXPECT_TRUE(job.is_gone_within());
}

TEST_F(Elastic, ManyRounds_NoDescriptorAndNoMappingIsLeftBehind) {
  constexpr int kRounds = kIsSanitized ? 20 : 100, kSize = 2;
  Job job(arguments({"--nproc-per-node=2", "--max-restarts=1000"}));
  std::map<int, long> descriptors, mappings;
  for (int round = 0; round < kRounds; ++round) {
    const auto pids = pids_of(job, round, kSize);
    ASSERT_EQ(pids.size(), 2u) << job.err();
    if (round == 5) {
      descriptors = of_ranks(job, round, "descriptors");
      mappings = of_ranks(job, round, "mappings");
    }
    expect_progress();  // three rounds in a row without any would end the job
    ::kill(static_cast<pid_t>(pids.at(1)), SIGKILL);
  }
  pids_of(job, kRounds, kSize);
  EXPECT_EQ(of_ranks(job, kRounds, "descriptors")[0], descriptors[0]);
  // The allocator may take more, AddressSanitizer's most, which keeps what was freed; and a thread of the round before
  // may still have its stack. One of each round would be 95.
  EXPECT_LE(of_ranks(job, kRounds, "mappings")[0], mappings[0] + 40);
  make("stop");
  EXPECT_EQ(job.wait(), 0);
}

TEST_F(Elastic, StoppedRankInACollective_ItIsKilledAtTheDeadlineAndReplaced) {
  Job job(arguments({"--nproc-per-node=3", "--max-restarts=1"}, elastic_place().timeout_ms));
  const auto pids = pids_of(job, 0, 3);
  expect_progress();
  ::kill(static_cast<pid_t>(pids.at(1)), SIGSTOP);
  const auto next = pids_of(job, 1, 3);
  EXPECT_EQ(process_state(static_cast<pid_t>(pids.at(1))), 0) << "it could write into the others' memory, if continued";
  EXPECT_EQ(next.at(0), pids.at(0)) << job.err();
  EXPECT_NE(next.at(1), pids.at(1)) << job.err();
  EXPECT_EQ(next.at(2), pids.at(2)) << job.err();
  expect_progress();
  make("stop");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(count_of(job.out(), recomputed()), 3);
}

TEST_F(Elastic, KilledRankWhoseForkedChildLivesOn_TheChildIsKilledAndThoseOfTheOthersAreNot) {
  make("fork");
  Job job(arguments({"--nproc-per-node=2", "--max-restarts=1"}));
  const auto pids = pids_of(job, 0, 2);
  expect_progress();
  const auto before = job.processes();
  EXPECT_EQ(before.size(), 6u);  // ddprun, its guardian, two workers and a child of each
  ::kill(static_cast<pid_t>(pids.at(0)), SIGKILL);
  const auto next = pids_of(job, 1, 2);
  EXPECT_EQ(next.at(1), pids.at(1)) << job.err();
  const auto after = job.processes();
  int gone = 0;
  for (const auto pid : before) gone += std::find(after.begin(), after.end(), pid) == after.end() ? 1 : 0;
  EXPECT_EQ(gone, 2);
  EXPECT_EQ(after.size(), 6u);
  expect_progress();
  make("stop");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_TRUE(job.is_gone_within());
}

TEST_F(Elastic, FailureWhileTheRanksMeet_TheyMeetAgainInTheNextRound) {
  Job job(arguments({"--nproc-per-node=3", "--max-restarts=2"}));
  const auto pids = pids_of(job, 0, 3);
  expect_progress();
  make("die_before_meeting");  // by the replacement
  ::kill(static_cast<pid_t>(pids.at(0)), SIGKILL);
  const auto next = pids_of(job, 2, 3);
  EXPECT_EQ(next.at(1), pids.at(1)) << job.err();
  EXPECT_EQ(next.at(2), pids.at(2)) << job.err();
  EXPECT_TRUE(of_ranks(job, 1, "pid").empty());
  expect_progress();
  make("stop");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(count_of(job.out(), recomputed()), 3);
}

TEST_F(Elastic, RankThatComputes_HearsOfTheEndOfTheRoundAtItsNextCall) {
  Job job(arguments({"--nproc-per-node=3", "--max-restarts=1"}));
  const auto pids = pids_of(job, 0, 3);
  make("compute");
  EXPECT_TRUE(job.prints("computes"));
  ::kill(static_cast<pid_t>(pids.at(2)), SIGKILL);
  EXPECT_TRUE(job.prints("leaves pid=" + std::to_string(pids.at(1))));
  EXPECT_EQ(count_of(job.out(), "leaves"), 1);
  std::filesystem::remove(folder() + "/compute");
  const auto next = pids_of(job, 1, 3);
  EXPECT_TRUE(job.prints("leaves pid=" + std::to_string(pids.at(0))));
  EXPECT_EQ(next.at(0), pids.at(0)) << job.err();
  make("stop");
  EXPECT_EQ(job.wait(), 0) << job.err();
}

TEST_F(Elastic, BudgetUsedUp_TheSurvivorsEndWithTheJobsVerdict) {
  Job job(arguments({"--nproc-per-node=2", "--max-restarts=1"}));
  ::kill(static_cast<pid_t>(pids_of(job, 0, 2).at(0)), SIGKILL);
  ::kill(static_cast<pid_t>(pids_of(job, 1, 2).at(1)), SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_THAT(job.err(), HasSubstr("rank 1 was killed by SIGKILL"));
  EXPECT_TRUE(job.is_gone_within());
}

TEST_F(Elastic, AStopWhileWorkersTrain_EndsThemAll) {
  Job job(arguments({"--nproc-per-node=2", "--max-restarts=1"}));
  pids_of(job, 0, 2);
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM);
  EXPECT_TRUE(job.is_gone_within());
}

TEST_F(Elastic, TwoNodes_AKilledWorkerOfOneIsReplacedAndAllOthersOfBothLiveOn) {
  const auto port = free_port();
  Job zero(arguments(elastic_node("2", 0, port, 2))), one(arguments(elastic_node("2", 1, port, 2)));
  auto before = pids_of(zero, 0, 2);
  before.merge(pids_of(one, 0, 2));
  expect_progress();
  ::kill(static_cast<pid_t>(before.at(3)), SIGKILL);
  auto after = pids_of(zero, 1, 2);
  after.merge(pids_of(one, 1, 2));
  for (const auto& [rank, pid] : after) EXPECT_EQ(pid == before.at(rank), rank != 3) << rank;
  expect_progress();
  ::kill(static_cast<pid_t>(after.at(0)), SIGKILL);
  auto last = pids_of(zero, 2, 2);
  last.merge(pids_of(one, 2, 2));
  for (const auto& [rank, pid] : last) EXPECT_EQ(pid == after.at(rank), rank != 0) << rank;
  expect_progress();
  make("stop");
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  EXPECT_EQ(one.wait(), 0) << one.err();
  EXPECT_EQ(count_of(zero.out() + one.out(), recomputed()), 4) << recomputed() << zero.out();
}

TEST_F(Elastic, TwoNodes_AStoppedRankOfTheOtherNodeIsKilledAtTheDeadline) {
  const auto port = free_port();
  Job zero(arguments(elastic_node("2", 0, port, 1), elastic_place().timeout_ms)),
      one(arguments(elastic_node("2", 1, port, 1), elastic_place().timeout_ms));
  const auto here = pids_of(zero, 0, 1), there = pids_of(one, 0, 1);
  expect_progress();
  ::kill(static_cast<pid_t>(there.at(1)), SIGSTOP);
  EXPECT_EQ(pids_of(zero, 1, 1).at(0), here.at(0)) << zero.err();
  EXPECT_NE(pids_of(one, 1, 1).at(1), there.at(1));
  EXPECT_EQ(process_state(static_cast<pid_t>(there.at(1))), 0);
  expect_progress();
  make("stop");
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  EXPECT_EQ(one.wait(), 0) << one.err();
}

TEST_F(Elastic, OneToTwoNodes_WhereTheAgentOfOneIsKilledTheOtherGoesOnAloneInTheSameProcess) {
  const auto port = free_port();
  Job zero(arguments(elastic_node("1:2", 0, port, 1))), one(arguments(elastic_node("1:2", 1, port, 1)));
  const auto here = pids_of(zero, 0, 1);
  pids_of(one, 0, 1);
  expect_progress();
  one.kill(SIGKILL);
  EXPECT_EQ(pids_of(zero, 1, 1).at(0), here.at(0)) << zero.err();
  EXPECT_EQ(of_ranks(zero, 1, "size").at(0), 1);
  expect_progress();
  make("stop");
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  EXPECT_EQ(count_of(zero.out(), recomputed()), 1) << recomputed() << zero.out();
  EXPECT_TRUE(one.is_gone_within());
}

TEST_F(Elastic, WithoutDdprun_ItTrainsOnceAsAGroupOfItsOwn) {
  Job::Options options;
  options.program = "elastic_worker";
  Job job({folder(), "60000"}, options);
  EXPECT_TRUE(job.prints("begin round="));
  expect_progress();
  make("stop");
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(count_of(job.out(), recomputed()), 1);
}

}  // namespace
}  // namespace ddp::test
