// The completion scripts, loaded by the shells that are there.
#include "launcher/command_line/completion.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "launcher/command_line/option_table.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::UnorderedElementsAre;

class Completion : public ::testing::Test {
 protected:
  // What `shell` prints for a script that loads the completion first.
  std::string run(const std::string& shell, const std::string& script) {
    const auto path = folder_.path().string() + "/script";
    std::ofstream(path) << completion_script(shell) << script;
    std::FILE* pipe = ::popen(("cd '" + folder_.path().string() + "' && " + shell + " script 2>&1").c_str(), "r");
    std::string out;
    for (char part[4096]; const auto bytes = std::fread(part, 1, sizeof part, pipe);) out.append(part, bytes);
    EXPECT_EQ(::pclose(pipe), 0) << out;
    return out;
  }

  // What bash offers for the last of these words. They are as bash has them: `=` is a word of its own.
  std::set<std::string> offered(const std::vector<std::string>& words) {
    std::string script = "COMP_WORDS=(ddprun";
    for (const auto& word : words) script += " '" + word + "'";
    script += ")\nCOMP_CWORD=" + std::to_string(words.size()) + "\n_ddprun\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n";
    std::istringstream lines(run("bash", script));
    std::set<std::string> out;
    for (std::string line; std::getline(lines, line);)
      if (!line.empty()) out.insert(line);
    return out;
  }

  static bool has(const std::string& shell) {
    return std::system(("command -v " + shell + " >/dev/null 2>&1").c_str()) == 0;
  }

  test::ScratchDirectory folder_;
};

TEST_F(Completion, OfBashOffersNamesValuesFoldersAndFiles) {
  std::filesystem::create_directory(folder_.path().string() + "/logs");
  std::ofstream(folder_.path().string() + "/train.py");
  std::set<std::string> all;
  for (const auto& option : option_table())
    if (option.group != OptionGroup::hidden) all.insert("--" + std::string(option.name));
  EXPECT_EQ(offered({"--"}), all);
  EXPECT_THAT(offered({"--rdzv-e"}), UnorderedElementsAre("--rdzv-endpoint"));
  EXPECT_THAT(offered({"--standalone", "--no-py"}), UnorderedElementsAre("--no-python"));
  EXPECT_THAT(offered({"--numa-binding", ""}), UnorderedElementsAre("node", "socket", "exclusive", "core-complex"));
  EXPECT_THAT(offered({"--numa_binding", "=", "n"}), UnorderedElementsAre("node"));
  EXPECT_THAT(offered({"--numa-binding", "="}), UnorderedElementsAre("node", "socket", "exclusive", "core-complex"));
  EXPECT_THAT(offered({"--nproc-per-node", "c"}), UnorderedElementsAre("cpu"));
  EXPECT_THAT(offered({"--log-dir", "="}), UnorderedElementsAre("logs"));
  EXPECT_THAT(offered({"--nnodes", "2", "--tee", "=", "3", "--dry"}), UnorderedElementsAre("--dry-run"));
  EXPECT_THAT(offered({"-r", "3", "--dry"}), UnorderedElementsAre("--dry-run"));
  EXPECT_THAT(offered({"--rdzv-id", ""}), UnorderedElementsAre());
  EXPECT_THAT(offered({"--standalone", "tra"}), IsSupersetOf({"train.py"}));
  EXPECT_THAT(offered({"train.py", "--dry"}), UnorderedElementsAre());  // the program's own
  EXPECT_THAT(offered({"train.py", "lo"}), UnorderedElementsAre("logs"));
}

TEST_F(Completion, OfZshLoads) {
  if (!has("zsh")) GTEST_SKIP() << "no zsh on this machine";
  EXPECT_THAT(run("zsh", "echo loaded\n"), HasSubstr("loaded"));
}

TEST_F(Completion, OfFishOffersNames) {
  if (!has("fish")) GTEST_SKIP() << "no fish on this machine";
  EXPECT_THAT(run("fish", "complete -C 'ddprun --dry'\n"), HasSubstr("--dry-run"));
}

}  // namespace
}  // namespace ddp::launcher
