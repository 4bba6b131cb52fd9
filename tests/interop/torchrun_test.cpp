// torchrun itself: as the launcher of programs with libddp, and its options beside ddprun's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

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
  // Without an address it gives workers the host's name, which not every machine can resolve.
  EXPECT_TRUE(checkpoints(python(), {"-m", "torch.distributed.run", "--local-addr=127.0.0.1"}) == ours);
}

// The long options that a --help names at the beginning of a line: "  -r REDIRECTS, --redirects REDIRECTS".
std::set<std::string> options_in(const std::string& help) {
  std::set<std::string> out;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    const auto begin = line.find_first_not_of(' ');
    if (begin == 0 || begin > 8 || line[begin] != '-') continue;  // npos, too; help begins farther right
    std::istringstream words(line.substr(begin, line.find("  ", begin) - begin));
    for (std::string word; words >> word;)
      if (word.starts_with("--")) out.insert(word.substr(0, word.find_first_of(",=")));
  }
  return out;
}

TEST_F(Torchrun, HasNoOptionThatDdprunLacks) {
  auto options = python_job();
  options.program = python();
  Job torchrun({"-m", "torch.distributed.run", "--help"}, options);
  ASSERT_EQ(torchrun.wait(), 0) << torchrun.err();
  Job ddprun({"--help"});
  ASSERT_EQ(ddprun.wait(), 0);
  const auto torchruns = options_in(torchrun.out()), ours = options_in(ddprun.out());
  EXPECT_THAT(torchruns,
              ::testing::IsSupersetOf({"--nnodes", "--nproc-per-node", "--nproc_per_node", "--tee", "--module"}));
  for (const auto& option : torchruns) {
    auto with_dashes = option;
    std::replace(with_dashes.begin(), with_dashes.end(), '_', '-');
    EXPECT_THAT(ours, ::testing::Contains(with_dashes));
    Job job({option + "=1", "--version"});  // most refuse the value, but by name
    job.wait();
    EXPECT_THAT(job.err(),
                ::testing::Not(::testing::AnyOf(::testing::HasSubstr("unknown"), ::testing::HasSubstr("ambiguous"))))
        << option;
  }
}

}  // namespace
}  // namespace ddp::test
