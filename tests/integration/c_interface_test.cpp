// The C interface, from programs that know no C++.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>

#include "tests/integration/job.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {
namespace {

using ::testing::HasSubstr;

void expect_said_by_all(const std::string& out, const std::string& part, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_THAT(out, HasSubstr(part + ": rank " + std::to_string(rank) + " is as expected"));
  }
}

void expect_part_to_pass(const std::string& part, int ranks, int ranks_that_stay = 0) {
  const ScratchDirectory scratch;
  Job job(
      {"--standalone", "--nproc-per-node=" + std::to_string(ranks), built("c_interface_worker"), part, scratch.path()});
  EXPECT_EQ(job.wait(), 0) << job.err();
  expect_said_by_all(job.out(), part, ranks_that_stay > 0 ? ranks_that_stay : ranks);
}

class CInterface : public ::testing::TestWithParam<int> {};

TEST_P(CInterface, HasEveryCollective) { expect_part_to_pass("collectives", GetParam()); }
TEST_P(CInterface, RefusesWrongInputAndGoesOn) { expect_part_to_pass("wrong_input", GetParam()); }
TEST_P(CInterface, NamesTheRankThatEnded) { expect_part_to_pass("rank_failure", GetParam(), GetParam() - 1); }
TEST_P(CInterface, AbortEndsTheGroup) { expect_part_to_pass("abort", GetParam()); }
TEST_P(CInterface, RefusesCallsOfAForkedChild) { expect_part_to_pass("fork", GetParam()); }
TEST_P(CInterface, AllocatesMemoryThatOutlivesTheGroup) { expect_part_to_pass("memory", GetParam()); }
TEST_P(CInterface, AveragesGradientsAndTellsWhatIsWrong) { expect_part_to_pass("training", GetParam()); }
TEST_P(CInterface, LoadsWhatItSaved) { expect_part_to_pass("checkpoints", GetParam()); }

TEST_P(CInterface, AllRanksStopAtOneStep) {
  const int ranks = GetParam();
  Job job({"--standalone", "--nproc-per-node=" + std::to_string(ranks), built("c_interface_worker"), "stop"});
  ASSERT_TRUE(job.prints("trains", ranks)) << job.err();
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 75) << job.err();  // stopped on purpose
  expect_said_by_all(job.out(), "stop", ranks);
}

TEST_P(CInterface, SurvivorsOfAKilledRankKeepTheirProcessAndGoOnFromTheLastCommit) {
  const int ranks = GetParam();
  Job job({"--standalone", "--nproc-per-node=" + std::to_string(ranks), "--max-restarts=1", built("c_interface_worker"),
           "elastic"});
  EXPECT_EQ(job.wait(), 0) << job.err();
  expect_said_by_all(job.out(), "elastic", ranks);
}

TEST_P(CInterface, ErrorsOfElasticTrainingAreNoFurtherRound) { expect_part_to_pass("elastic_errors", GetParam()); }

INSTANTIATE_TEST_SUITE_P(OfRanks, CInterface, ::testing::Values(2, 3), ::testing::PrintToStringParamName());

void expect_alone_to_pass(const std::string& part) {
  Job::Options options;
  options.program = built("c_interface_worker");
  Job job({part}, options);
  EXPECT_EQ(job.wait(), 0) << job.err();
}

TEST(CInterfaceAtExit, CallsHaveTheirErrors) {
  Job::Options options;
  options.program = built("c_interface_worker");
  Job job({"exit"}, options);
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("at exit: as expected"));
}

TEST(CInterfaceStore, ThreadsMeetInAStoreOfCallbacks) { expect_alone_to_pass("callback_store"); }
TEST(CInterfaceStore, ItsFailureIsTold) { expect_alone_to_pass("failing_store"); }

}  // namespace
}  // namespace ddp::test
