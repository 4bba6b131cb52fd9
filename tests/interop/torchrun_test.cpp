// torchrun itself as the launcher of programs with libddp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "tests/interop/python.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {
namespace {

using ::testing::SizeIs;
using Torchrun = PythonTest;

// The checkpoints of one run by their step, which ends their names.
std::map<std::string, std::string> checkpoints_in(const std::filesystem::path& folder) {
  std::map<std::string, std::string> contents;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    std::ifstream file(entry.path(), std::ios::binary);
    contents[name.substr(name.find("_step_"))] = {std::istreambuf_iterator<char>(file), {}};
  }
  return contents;
}

TEST_F(Torchrun, TrainsTheExampleToTheSameBytesAsDdprun) {
  const auto checkpoints = [](const std::string& program, std::vector<std::string> arguments) {
    const ScratchDirectory scratch;
    auto options = python_job();
    options.program = program;
    for (const auto& word : {std::string("--standalone"), std::string("--nproc-per-node=2"), std::string("--no-python"),
                             built("train_breast_cancer"), "--checkpoint-dir=" + scratch.path().string()})
      arguments.push_back(word);
    Job job(arguments, options);
    EXPECT_EQ(job.wait(), 0) << job.err();
    return checkpoints_in(scratch.path());
  };
  const auto ours = checkpoints("ddprun", {});
  EXPECT_THAT(ours, SizeIs(2));
  EXPECT_TRUE(checkpoints(python(), {"-m", "torch.distributed.run"}) == ours);
}

}  // namespace
}  // namespace ddp::test
