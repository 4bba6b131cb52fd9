// libddp from Python: the example of its C interface, and PyTorch's backend `ddp` of the package in python/.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tests/integration/free_port.hpp"
#include "tests/interop/python.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

const std::string kLibrary = "DDP_LIBRARY=" DDP_TEST_BIN_DIR "/../lib/libddp.so";

class NumpyExample : public PythonTest {
 protected:
  void SetUp() override { need_module("numpy"); }
};

// "loss L, bias B" of each rank.
std::vector<std::string> results_of_numpy_example(int ranks) {
  auto options = python_job();
  options.environment.push_back(kLibrary);
  const std::string folder = std::string(DDP_TEST_SOURCE_DIR) + "/examples/";
  Job job({"--standalone", "--no-prefix", "--nproc-per-node=" + std::to_string(ranks),
           folder + "train_numpy/train_numpy.py", folder + "data/breast_cancer.csv"},
          options);
  EXPECT_EQ(job.wait(), 0) << job.err();
  std::vector<std::string> results;
  std::istringstream lines(job.out());
  for (std::string line; std::getline(lines, line);) results.push_back(line.substr(line.find("loss")));
  return results;
}

TEST_F(NumpyExample, TwoRanksComeToTheResultOfOne) {
  const auto alone = results_of_numpy_example(1), both = results_of_numpy_example(2);
  ASSERT_THAT(alone, SizeIs(1));
  EXPECT_THAT(alone[0], HasSubstr("loss 0."));
  EXPECT_EQ(both, std::vector<std::string>(2, alone[0]));
}

// The package as if it were installed: with its entry points, so that scripts need not import it.
class DdpBackend : public PythonTest {
 protected:
  void SetUp() override {
    PythonTest::SetUp();
    const auto metadata = scratch_.path() / "ddprun-0.dist-info";
    std::filesystem::create_directory(metadata);
    std::ofstream(metadata / "METADATA") << "Metadata-Version: 2.1\nName: ddprun\nVersion: 0\n";
    std::ofstream(metadata / "entry_points.txt") << "[torch.distributed.backends]\nddp = ddprun.c10d:register\n";
  }

  Job::Options options() const {
    auto options = python_job();
    options.environment.push_back(kLibrary);
    options.environment.push_back("PYTHONPATH=" DDP_TEST_SOURCE_DIR "/python:" + scratch_.path().string());
    return options;
  }

  std::unique_ptr<Job> start(const std::string& backend, const std::string& part, int ranks = 2,
                             const std::string& debug = "OFF") const {
    auto with_debug = options();
    with_debug.environment.push_back("TORCH_DISTRIBUTED_DEBUG=" + debug);
    return std::make_unique<Job>(
        std::vector<std::string>{"--standalone", "--no-prefix", "--nproc-per-node=" + std::to_string(ranks),
                                 script("ddp_backend.py"), backend, part},
        with_debug);
  }

  const ScratchDirectory scratch_;
};

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST_F(DdpBackend, TrainsToTheLossesOfGloo) {
  const auto gloo = start("gloo", "train");
  ASSERT_EQ(gloo->wait(), 0) << gloo->err();
  const auto ours = start("ddp", "train");
  ASSERT_EQ(ours->wait(), 0) << ours->err();
  EXPECT_THAT(sorted_lines(ours->out()), SizeIs(12));
  EXPECT_EQ(sorted_lines(ours->out()), sorted_lines(gloo->out()));
}

TEST_F(DdpBackend, HasWhatDistributedDataParallelNeeds) {
  const auto job = start("ddp", "ops", 3);
  EXPECT_EQ(job->wait(), 0) << job->err();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(job->out(), HasSubstr("rank " + std::to_string(rank) + " of 3: all as expected"));
  }
}

TEST_F(DdpBackend, TrainsUnderPytorchsOwnChecks) {
  const auto job = start("ddp", "train", 2, "DETAIL");
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(sorted_lines(job->out()), SizeIs(12));
}

TEST_F(DdpBackend, RunsUnderTorchrun) {
  auto with_torchrun = options();
  with_torchrun.program = python();
  Job job({"-m", "torch.distributed.run", "--local-addr=127.0.0.1", "--standalone", "--nproc-per-node=2",
           script("ddp_backend.py"), "ddp", "ops"},
          with_torchrun);
  EXPECT_EQ(job.wait(), 0) << job.err();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(job.out(), HasSubstr("rank " + std::to_string(rank) + " of 2: all as expected"));
  }
}

TEST_F(DdpBackend, RefusesAPortRangeThatIsNone) {
  auto by_hand = options();
  by_hand.program = python();
  for (const char* variable : {"RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", "DDPRUN_PORT_RANGE=300-200"}) {
    by_hand.environment.push_back(variable);
  }
  by_hand.environment.push_back("MASTER_PORT=" + free_port());
  Job job({script("ddp_backend.py"), "ddp", "ops"}, by_hand);
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.err(), HasSubstr("ValueError: DDPRUN_PORT_RANGE is '300-200'"));
}

TEST_F(DdpBackend, TellsWhichRankEnded) {
  const auto job = start("ddp", "die");
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(job->out(), HasSubstr("rank 0 got: rank 1 "));
}

TEST_F(DdpBackend, AProcessMayEndWithACollectiveUnderWay) {
  const auto job = start("ddp", "leave");
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_EQ(job->out(), "called\n");
}

}  // namespace
}  // namespace ddp::test
