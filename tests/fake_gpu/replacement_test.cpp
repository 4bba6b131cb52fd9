// What a sticky CUDA error does to a job of run_elastic under ddprun, over the stand-in: a process can't use its GPU
// any more, says so, and is replaced; the other one lives on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "tests/integration/job.hpp"
#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {
namespace {

using ddp::test::contents_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

// By rank, from the worker's lines "begin round=N rank=R pid=P ...".
std::map<int, long> pids_of(Job& job, int round) {
  EXPECT_TRUE(job.prints("begin round=" + std::to_string(round) + " ", 2)) << job.out() << job.err();
  std::map<int, long> pids;
  for (const auto& line : matches(job.out(), "begin round=" + std::to_string(round) + " rank=([0-9]+) pid=([0-9]+) "))
    pids[std::stoi(line[1])] = std::stol(line[2]);
  return pids;
}

TEST(LostGpu, EndsItsProcessWithARecordAndIsReplaced) {
  const ScratchDirectory scratch;
  std::ofstream(scratch.path() / "lose_gpu") << '\n';
  ::setenv("DDP_FLIGHT_RECORDER", (scratch.path() / "trace_").c_str(), 1);
  Job job({"--nproc-per-node=2", "--max-restarts=3", built("fake_elastic_worker"), scratch.path(), "60000"});
  const auto before = pids_of(job, 0);
  const auto after = pids_of(job, 1);
  ASSERT_EQ(before.size(), 2u);
  ASSERT_EQ(after.size(), 2u);
  const int lost = before.at(0) == after.at(0) ? 1 : 0;
  EXPECT_NE(before.at(lost), after.at(lost));
  EXPECT_EQ(before.at(1 - lost), after.at(1 - lost)) << "the other one lives on";
  const auto record = scratch.path() / ("trace." + std::to_string(lost) + ".json");
  EXPECT_THAT(job.out() + job.err(),
              AllOf(HasSubstr("libddp: this process ends: an illegal memory access was encountered"),
                    HasSubstr("look:  " + record.string()), HasSubstr("code 1")));
  EXPECT_THAT(contents_of(record), AllOf(HasSubstr("an illegal memory access"), HasSubstr("nccl:all_reduce")));

  std::ofstream(scratch.path() / "stop") << '\n';
  EXPECT_EQ(job.wait(), 0) << job.err();
}

}  // namespace
}  // namespace ddp::test
