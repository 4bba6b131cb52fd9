// How options may be spelt, and where the program begins.
#include "launcher/command_line/given_options.hpp"

#include <set>

#include "tests/unit/launcher/a_machine.hpp"

namespace ddp::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Spelling : public AMachine {
 protected:
  CommandLine read(const std::vector<std::string>& arguments) const { return read_options(arguments, lookup()); }

  // The value of one option on a command line; "-" where it was not given.
  std::string value_of(const char* name, const std::vector<std::string>& arguments) const {
    const auto line = read(arguments);
    const auto* given = line.options.find(name);
    return given == nullptr ? "-" : given->value;
  }
};

TEST(OptionTable, HasEveryOptionOfTorchrun) {
  // torch 2.15.0, `torchrun --help`.
  const std::set<std::string> torchruns{"nnodes",
                                        "nproc-per-node",
                                        "rdzv-backend",
                                        "rdzv-endpoint",
                                        "rdzv-id",
                                        "rdzv-conf",
                                        "standalone",
                                        "max-restarts",
                                        "monitor-interval",
                                        "start-method",
                                        "event-log-handler",
                                        "role",
                                        "module",
                                        "no-python",
                                        "run-path",
                                        "log-dir",
                                        "redirects",
                                        "tee",
                                        "log-line-prefix-template",
                                        "local-ranks-filter",
                                        "duplicate-stdout-filters",
                                        "duplicate-stderr-filters",
                                        "node-rank",
                                        "master-addr",
                                        "master-port",
                                        "local-addr",
                                        "logs-specs",
                                        "numa-binding",
                                        "signals-to-handle",
                                        "shutdown-timeout",
                                        "virtual-local-rank",
                                        "print-completion",
                                        "help"};
  std::set<std::string> ours;
  for (const auto& option : option_table())
    if (option.is_torchruns) ours.emplace(option.name);
  EXPECT_EQ(ours, torchruns);
}

TEST_F(Spelling, OfEveryOptionInEveryWay) {
  for (const auto& option : option_table()) {
    const std::string name(option.name);
    SCOPED_TRACE(name);
    auto underscores = name;
    std::replace(underscores.begin(), underscores.end(), '-', '_');
    for (const auto& word : {"--" + name, "--" + underscores}) {
      if (option.value_name.empty()) {
        EXPECT_EQ(value_of(option.name.data(), {word}), "1");
        EXPECT_THROW(read({word + "=1"}), UsageError);
        continue;
      }
      EXPECT_EQ(value_of(option.name.data(), {word, "x"}), "x");
      EXPECT_EQ(value_of(option.name.data(), {word + "=x"}), "x");
      EXPECT_EQ(value_of(option.name.data(), {word + "=--x=y"}), "--x=y");
      EXPECT_EQ(value_of(option.name.data(), {word + "="}), "");
      EXPECT_THROW(read({word}), UsageError);
      EXPECT_THROW(read({word, "--nnodes=2", "train.py"}), UsageError);
    }
  }
}

TEST_F(Spelling, PrefixesAsLongAsTheyAreUnambiguous) {
  EXPECT_EQ(value_of("redirects", {"--redirect=3"}), "3");
  EXPECT_EQ(value_of("nproc-per-node", {"--np", "4"}), "4");
  EXPECT_EQ(value_of("nproc-per-node", {"--nproc_per=4"}), "4");
  EXPECT_EQ(value_of("rdzv-id", {"--rdzv_i=a"}), "a");
  EXPECT_THROW(read({"--rdzv=a"}), UsageError);
  EXPECT_THROW(read({"--sta"}), UsageError);
  EXPECT_THROW(read({"--no"}), UsageError);
  // Where torchrun knows one option only, ours do not make its prefix ambiguous.
  EXPECT_EQ(value_of("no-python", {"--no-p"}), "1");
  EXPECT_EQ(value_of("no-prefix", {"--no-pr"}), "1");
  EXPECT_EQ(value_of("virtual-local-rank", {"--v"}), "1");
}

TEST_F(Spelling, ShortOptionsAreJoinedWithValuesAndEachOther) {
  for (const auto& words :
       std::vector<std::vector<std::string>>{{"-r3"}, {"-r", "3"}, {"-r=3"}, {"-mr3"}, {"-mr", "3"}})
    EXPECT_EQ(value_of("redirects", words), "3") << ::testing::PrintToString(words);
  EXPECT_EQ(value_of("module", {"-mt0:3", "package.train"}), "1");
  EXPECT_EQ(value_of("tee", {"-mt0:3", "package.train"}), "0:3");
  EXPECT_THAT(read({"-m", "package.train", "-m"}).program, ElementsAre("package.train", "-m"));
  EXPECT_THROW(read({"-mpackage.train"}), UsageError);
  EXPECT_THROW(read({"-m=1"}), UsageError);
  EXPECT_THROW(read({"-r"}), UsageError);
}

TEST_F(Spelling, WhatStandsBehindTheProgramIsUntouched) {
  for (const auto& program : std::vector<std::vector<std::string>>{{"train.py", "--node=3"},
                                                                   {"train.py", "--nnodes", "2", "-r3"},
                                                                   {"train.py", "--", "-h"},
                                                                   {"-", "--tee"},
                                                                   {"x", ""}})
    for (const auto& before : std::vector<std::vector<std::string>>{{}, {"--nnodes=1"}, {"--tee", "3"}, {"--"}}) {
      auto line = before;
      line.insert(line.end(), program.begin(), program.end());
      EXPECT_EQ(read(line).program, program);
    }
  EXPECT_EQ(value_of("nnodes", {"train.py", "--nnodes=2"}), "-");
  EXPECT_THAT(read({"--", "--nnodes=2"}).program, ElementsAre("--nnodes=2"));
}

TEST_F(Spelling, TheLastOneCounts) {
  EXPECT_EQ(value_of("tee", {"--tee=1", "-t2", "train.py"}), "2");
  environment = {{"PET_TEE", "0"}};
  EXPECT_EQ(value_of("tee", {}), "0");
  environment["DDPRUN_TEE"] = "1";
  EXPECT_EQ(value_of("tee", {}), "1");
  EXPECT_EQ(value_of("tee", {"-t3"}), "3");
}

TEST_F(Spelling, EveryOptionHasItsVariables) {
  for (const auto& option : option_table()) {
    const std::string name(option.name);
    SCOPED_TRACE(name);
    auto variable = name;
    for (auto& c : variable) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
    const bool only_shows = name == "help" || name == "version" || name.rfind("print-", 0) == 0;
    environment = {{"DDPRUN_" + variable, "1"}};
    EXPECT_EQ(value_of(option.name.data(), {}), only_shows ? "-" : "1");
    environment = {{"PET_" + variable, "1"}};
    EXPECT_EQ(value_of(option.name.data(), {}), !only_shows && option.is_torchruns ? "1" : "-");
  }
}

TEST_F(Spelling, OnOffVariablesHoldNumbers) {
  for (const auto& [text, want] :
       std::map<std::string, std::string>{{"0", "0"}, {"00", "0"}, {"1", "1"}, {"-1", "1"}, {"10", "1"}}) {
    environment = {{"PET_MODULE", text}};
    EXPECT_EQ(value_of("module", {}), want) << text;
  }
  for (const auto* text : {"", "yes", "-", "1x", "--1"}) {
    environment = {{"PET_MODULE", text}};
    expect_usage_error([&] { read({}); }, "must be 0 or 1", "PET_MODULE=", "0 or 1");
  }
}

TEST_F(Spelling, WhatOnlyShowsSomethingEndsTheLine) {
  EXPECT_EQ(value_of("help", {"--help", "--bogus"}), "1");
  EXPECT_EQ(value_of("version", {"--version", "--bogus"}), "1");
  EXPECT_THROW(read({"--bogus", "--help"}), UsageError);
}

TEST_F(Spelling, MistakesAreNamedWithARemedy) {
  const struct {
    std::vector<std::string> line;
    const char *says, *where, *remedy;
  } cases[] = {
      {{"--nproc-pre-node=2", "true"}, "unknown option --nproc-pre-node=2", "command line", "`--nproc-per-node`"},
      {{"--bogus", "3", "train.py"}, "unknown option --bogus", "command line", "--help"},
      {{"-z", "true"}, "unknown option -z", "command line", "--help"},
      {{"-rx", "-Q"}, "unknown option -Q", "command line", "--help"},
      {{"--=3"}, "unknown option --=3", "command line", "--help"},
      {{"--print-man", "x"}, "unknown option --print-man", "command line", "--help"},
      {{"--rdzv", "true"}, "ambiguous", "command line", "--rdzv-backend, --rdzv-endpoint, --rdzv-id, --rdzv-conf"},
      {{"--standalone=yes", "true"}, "--standalone takes no value", "--standalone=yes", "`--standalone`"},
      {{"--max-restarts"}, "--max-restarts needs a value", "the end", "`--max-restarts=N`"},
      {{"--log-dir", "--tee", "3"}, "--log-dir needs a value", "before --tee", "`--log-dir=DIR`"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(::testing::PrintToString(c.line));
    expect_usage_error([&] { read(c.line); }, c.says, c.where, c.remedy);
  }
}

TEST_F(Spelling, OptionsOfOtherLaunchersNameOurs) {
  const struct {
    std::vector<std::string> line;
    const char *says, *remedy;
  } cases[] = {
      {{"-np", "4", "./train"}, "unknown option -np", "`--nproc-per-node=N`"},
      {{"-n", "2", "./train"}, "unknown option -n", "`--nproc-per-node=N`"},
      {{"-n4", "./train"}, "unknown option -n4", "`--nproc-per-node=N`"},
      {{"-nproc", "2", "./train"}, "unknown option -nproc", "`--nproc-per-node`"},
      {{"-nnodes=2", "./train"}, "unknown option -nnodes=2", "`--nnodes`"},
      {{"-hostfile", "hosts", "./train"}, "unknown option -hostfile", "`--hostfile`"},
      {{"--num_processes=4", "train.py"}, "unknown option --num_processes=4", "`--nproc-per-node=N`"},
      {{"--gpus", "2", "train.py"}, "unknown option --gpus", "`--nproc-per-node=N`"},
      {{"-H", "a,b", "./train"}, "unknown option -H", "`--hosts=node0:4,node1:4`"},
      {{"-Ha,b", "./train"}, "unknown option -Ha,b", "`--hosts=node0:4,node1:4`"},
      {{"-host", "a,b", "./train"}, "unknown option -host", "`--hosts=node0:4,node1:4`"},
      {{"--host", "a,b", "./train"}, "unknown option --host", "`--hosts=node0:4,node1:4`"},
      {{"--machinefile", "hosts", "./train"}, "unknown option --machinefile", "`--hostfile=FILE`"},
      {{"-N", "2", "./train"}, "unknown option -N", "`--nnodes=N`"},
      {{"--env", "PATH", "./train"}, "unknown option --env", "workers inherit its environment"},
      {{"--use_env", "train.py"}, "unknown option --use_env", "leave it out"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(::testing::PrintToString(c.line));
    expect_usage_error([&] { read(c.line); }, c.says, "command line", c.remedy);
  }
}

}  // namespace
}  // namespace ddp::launcher
