#include "launcher/command_line/launch_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "launcher/command_line/machine.hpp"

namespace ddp::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A machine with two CPUs, /bin/true, an unreadable file, a script and Python.
class CommandLine : public ::testing::Test {
 protected:
  LaunchConfig parse(const std::vector<std::string>& arguments) const {
    return parse_command_line(
        arguments,
        [this](const std::string& name) {
          const auto found = environment.find(name);
          return found == environment.end() ? std::nullopt : std::optional(found->second);
        },
        machine());
  }

  Machine machine() const {
    return {gpus, 2, [this](const std::string& path) {
              const auto found = files.find(path);
              return found == files.end() ? FileKind::missing : found->second;
            }};
  }

  int gpus = 0;
  std::map<std::string, std::string> environment{{"PATH", "/usr/bin:/bin"}};
  std::map<std::string, FileKind> files{{"/bin/true", FileKind::executable},
                                        {"/usr/bin/python3", FileKind::executable},
                                        {"./trainer", FileKind::executable},
                                        {"notes.txt", FileKind::not_executable},
                                        {"./notes.txt", FileKind::not_executable},
                                        {"/tmp", FileKind::directory},
                                        {"train.py", FileKind::not_executable},
                                        {"/venv/bin/python", FileKind::executable}};
};

TEST_F(CommandLine, ArgumentsOfTheProgramAreUntouched) {
  const auto config = parse({"--nproc-per-node", "3", "true", "--nproc-per-node=9", "-m", "--", "a b", ""});
  EXPECT_EQ(config.workers, 3);
  EXPECT_EQ(config.command.path, "/bin/true");
  EXPECT_THAT(config.command.arguments, ElementsAre("true", "--nproc-per-node=9", "-m", "--", "a b", ""));
}

TEST_F(CommandLine, AcceptsTheSpellingsOfTorchrun) {
  for (const auto& words : std::vector<std::vector<std::string>>{{"--nproc-per-node=4"},
                                                                 {"--nproc-per-node", "4"},
                                                                 {"--nproc_per_node=4"},
                                                                 {"--nproc", "4"},
                                                                 {"--np=4"},
                                                                 {"--standalone", "--nnodes=1", "--nproc_per=4"},
                                                                 {"--nproc-per-node=2", "--nproc-per-node=4"}}) {
    SCOPED_TRACE(::testing::PrintToString(words));
    auto line = words;
    line.emplace_back("true");
    EXPECT_EQ(parse(line).workers, 4);
  }
}

TEST_F(CommandLine, DoubleDashEndsTheOptions) {
  files["./--odd"] = FileKind::executable;
  EXPECT_THAT(parse({"--", "./--odd", "x"}).command.arguments, ElementsAre("./--odd", "x"));
}

TEST_F(CommandLine, WorkersFollowTheMachine) {
  EXPECT_EQ(parse({"true"}).workers, 1);
  EXPECT_THAT(parse({"true"}).notices, ElementsAre(HasSubstr("1 worker")));
  EXPECT_EQ(parse({"--nproc-per-node=cpu", "true"}).workers, 2);
  EXPECT_EQ(parse({"--nproc-per-node=auto", "true"}).workers, 2);
  EXPECT_THAT(parse({"--nproc-per-node=cpu", "true"}).notices, IsEmpty());
  gpus = 8;
  EXPECT_EQ(parse({"true"}).workers, 8);
  EXPECT_THAT(parse({"true"}).notices, ElementsAre(HasSubstr("one per GPU")));
  EXPECT_EQ(parse({"--nproc-per-node=gpu", "true"}).workers, 8);
  EXPECT_EQ(parse({"--nproc-per-node=auto", "true"}).workers, 8);
  EXPECT_EQ(parse({"--nproc-per-node=cpu", "true"}).workers, 2);
}

TEST_F(CommandLine, EnvironmentGivesDefaultsAndOursWins) {
  environment["PET_NPROC_PER_NODE"] = "3";
  environment["PET_MAX_RESTARTS"] = "7";
  EXPECT_EQ(parse({"true"}).workers, 3);
  EXPECT_EQ(parse({"true"}).restarts_max, 7);
  environment["DDPRUN_NPROC_PER_NODE"] = "5";
  EXPECT_EQ(parse({"true"}).workers, 5);
  EXPECT_EQ(parse({"--nproc-per-node=6", "true"}).workers, 6);
  environment["DDPRUN_NO_PREFIX"] = "1";
  EXPECT_FALSE(parse({"true"}).output.prefix_lines);
  environment["DDPRUN_NO_PREFIX"] = "0";
  EXPECT_TRUE(parse({"true"}).output.prefix_lines);
}

TEST_F(CommandLine, GraceComesFromTheOptionThenTheVariable) {
  EXPECT_EQ(parse({"true"}).grace, std::chrono::seconds(30));
  environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = "120";
  EXPECT_EQ(parse({"true"}).grace, std::chrono::seconds(120));
  EXPECT_EQ(parse({"--shutdown-timeout=5", "true"}).grace, std::chrono::seconds(5));
}

TEST_F(CommandLine, PythonScriptsRunByAnInterpreter) {
  EXPECT_THAT(parse({"train.py", "--lr", "1"}).command.arguments,
              ElementsAre("/usr/bin/python3", "-u", "train.py", "--lr", "1"));
  EXPECT_THAT(parse({"-m", "package.train", "x"}).command.arguments,
              ElementsAre("/usr/bin/python3", "-u", "-m", "package.train", "x"));
  environment["VIRTUAL_ENV"] = "/venv";
  EXPECT_EQ(parse({"train.py"}).command.path, "/venv/bin/python");
  environment["PYTHON_EXEC"] = "python3";
  EXPECT_EQ(parse({"train.py"}).command.path, "/usr/bin/python3");
}

TEST_F(CommandLine, ProgramsAreFoundOnPathThenInTheWorkingDirectory) {
  EXPECT_EQ(parse({"true"}).command.path, "/bin/true");
  EXPECT_EQ(parse({"trainer"}).command.path, "./trainer");
  EXPECT_EQ(parse({"trainer", "-u", "x"}).program, "trainer");
  EXPECT_EQ(parse({"-m", "package.train", "x"}).program, "package.train");
}

TEST_F(CommandLine, ProgramsThatCannotRunSayWhy) {
  environment.erase("VIRTUAL_ENV");
  const struct {
    std::vector<std::string> line;
    int exit_code;
    const char* says;
  } cases[] = {{{"./missing"}, 127, "./missing does not exist"},
               {{"missing.py"}, 127, "missing.py does not exist"},
               {{"notes.txt"}, 126, "notes.txt is not executable"},
               {{"--no-python", "./notes.txt"}, 126, "not executable"},
               {{"/tmp"}, 126, "is a directory"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.says);
    try {
      parse(c.line);
      FAIL() << "accepted";
    } catch (const ProgramError& error) {
      EXPECT_EQ(error.exit_code(), c.exit_code);
      EXPECT_THAT(error.what(), HasSubstr(c.says));
      EXPECT_FALSE(error.where().empty());
      EXPECT_FALSE(error.try_this().empty());
    }
  }
}

TEST_F(CommandLine, WrongUseNamesWhatWhereAndTheRemedy) {
  const struct {
    std::vector<std::string> line;
    const char *what, *remedy;
  } cases[] = {
      {{}, "no program given", "ddprun --nproc-per-node"},
      {{"--nproc-per-node=0", "true"}, "not '0'", "--nproc-per-node=1"},
      {{"--nproc-per-node=-1", "true"}, "not '-1'", "--nproc-per-node=1"},
      {{"--nproc-per-node=99999999999", "true"}, "not '99999999999'", "--nproc-per-node=1"},
      {{"--nproc-per-node=2x", "true"}, "not '2x'", "--nproc-per-node=1"},
      {{"--nproc-per-node=banana", "true"}, "not 'banana'", "--nproc-per-node=1"},
      {{"--nproc-per-node=gpu", "true"}, "no GPU can be used", "--nproc-per-node=cpu"},
      {{"--nproc-pre-node=2", "true"}, "unknown option --nproc-pre-node=2", "`--nproc-per-node`"},
      {{"--bogus", "3", "train.py"}, "unknown option --bogus", "--help"},
      {{"-x", "true"}, "unknown option -x", "--help"},
      {{"--no", "true"}, "ambiguous", "--no-python"},
      {{"--standalone=yes", "true"}, "takes no value", "--standalone"},
      {{"--max-restarts"}, "needs a value", "--max-restarts=N"},
      {{"--max-restarts=-1", "true"}, "not '-1'", "--max-restarts=0"},
      {{"--shutdown-timeout=soon", "true"}, "not 'soon'", "--shutdown-timeout=0"},
      {{"--nnodes=2", "true"}, "only one node", "--nnodes=1"},
      {{"-m", "--no-python", "x"}, "exclude each other", "drop one"},
      {{"--store-allow=10.0.0.0/99", "true"}, "10.0.0.0/99", "--store-allow="},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(::testing::PrintToString(c.line));
    try {
      parse(c.line);
      FAIL() << "accepted";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr(c.what));
      EXPECT_THAT(error.try_this(), HasSubstr(c.remedy));
      EXPECT_FALSE(error.where().empty());
    }
  }
  environment["PET_MAX_RESTARTS"] = "many";
  try {
    parse({"true"});
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.where(), HasSubstr("PET_MAX_RESTARTS=many"));
  }
}

TEST_F(CommandLine, HelpAndVersionNeedNoProgram) {
  EXPECT_EQ(parse({"--help"}).mode, LaunchConfig::Mode::show_help);
  EXPECT_EQ(parse({"-h", "nonsense"}).mode, LaunchConfig::Mode::show_help);
  EXPECT_EQ(parse({"--version"}).mode, LaunchConfig::Mode::show_version);
  for (const auto& option : option_table()) EXPECT_THAT(help_text(), HasSubstr("--" + std::string(option.name)));
}

TEST(Machine, CountsTheGpusThatCudaVisibleDevicesLeaves) {
  EXPECT_EQ(visible_gpu_count(4, std::nullopt), 4);
  EXPECT_EQ(visible_gpu_count(4, ""), 0);
  EXPECT_EQ(visible_gpu_count(4, "0,2"), 2);
  EXPECT_EQ(visible_gpu_count(4, " 1 , 3 "), 2);
  EXPECT_EQ(visible_gpu_count(4, "0,7,1"), 1);  // what follows an invalid entry is invisible
  EXPECT_EQ(visible_gpu_count(4, "-1"), 0);
  EXPECT_EQ(visible_gpu_count(4, "GPU-8932f937,MIG-GPU-1/2/3"), 2);
  EXPECT_EQ(visible_gpu_count(0, "0,1"), 0);
}

}  // namespace
}  // namespace ddp::launcher
