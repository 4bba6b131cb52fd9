// ddp/torch.hpp with the libtorch of the installed PyTorch: the worker beside this file, compiled here, because that
// libtorch may be installed only after the build is configured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/interop/python.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kChecks = 14;  // of the worker

std::string torch_folder() {
  auto options = python_job();
  options.program = python();
  Job job({"-c", "import importlib.util; print(importlib.util.find_spec('torch').submodule_search_locations[0])"},
          options);
  EXPECT_EQ(job.wait(), 0) << job.err();
  return job.out().substr(0, job.out().find('\n'));
}

void compile(const std::string& source, const std::string& program) {
  const std::string torch = torch_folder(), library = DDP_TEST_BIN_DIR "/../lib";
  auto options = python_job();
  options.program = "/usr/bin/c++";
  Job job(
      {"-std=c++20", "-O0", "-I" DDP_TEST_SOURCE_DIR "/include", "-isystem", torch + "/include", "-isystem",
       torch + "/include/torch/csrc/api/include", source, "-o", program, "-L" + library, "-lddp", "-L" + torch + "/lib",
       "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-Wl,-rpath," + torch + "/lib:" + library},
      options);
  ASSERT_EQ(job.wait(), 0) << job.err();
}

// The worker's network in Python, with the state that it saved.
std::string what_python_loads(const std::string& checkpoints) {
  auto options = python_job();
  options.program = python();
  Job job({"-c",
           "import glob, sys, torch\n"
           "from safetensors.torch import load_file\n"
           "net = torch.nn.Module()\n"
           "net.layers = torch.nn.Sequential(torch.nn.Conv2d(1, 6, 3), torch.nn.BatchNorm2d(6), torch.nn.ReLU(),\n"
           "                                 torch.nn.Flatten(), torch.nn.Linear(96, 4))\n"
           "state = load_file(glob.glob(sys.argv[1] + '/*.safetensors')[0])\n"
           "print(net.load_state_dict({key: state[key] for key in state if key.startswith('layers.')}))\n",
           checkpoints},
          options);
  EXPECT_EQ(job.wait(), 0) << job.err();
  return job.out();
}

class Libtorch : public PythonTest {};

TEST_F(Libtorch, ModulesTrainOnTwoRanksAsAveragedByHand) {
  const ScratchDirectory folder;
  const auto program = (folder.path() / "libtorch_worker").string();
  ASSERT_NO_FATAL_FAILURE(compile(script("libtorch_worker.cpp"), program));
  const auto checkpoints = (folder.path() / "checkpoints").string();
  Job job({"--standalone", "--no-prefix", "--nproc-per-node=2", "--no-python", program, checkpoints}, python_job());
  EXPECT_EQ(job.wait(), 0) << job.err();
  std::vector<std::string> lines;
  std::istringstream text(job.out());
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  EXPECT_THAT(lines, SizeIs(2 * kChecks)) << job.err();
  EXPECT_THAT(lines, Each(HasSubstr(": ok")));
  EXPECT_EQ(what_python_loads(checkpoints), "<All keys matched successfully>\n");
}

}  // namespace
}  // namespace ddp::test
