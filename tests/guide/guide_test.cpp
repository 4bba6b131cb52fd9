// Every page of docs/guide, from its text: the files are saved, the commands are run in order in an empty folder, and
// each printed line that the page shows is looked for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/guide/page.hpp"
#include "tests/integration/job.hpp"
#include "tests/integration/sshd.hpp"
#include "tests/interop/python.hpp"
#include "tests/multihost/hosts.hpp"
#include "tests/slurm/cluster.hpp"
#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kLimit{300};  // of one block: a compiler, or PyTorch's imports, on a loaded machine

// This machine lacks what a chapter needs. The test skips with what it says.
class Lacking : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Ended {
  int code;
  std::string printed;
};

template <class Process>
Ended end_of(Process& process) {
  const int code = process.wait();
  return {code, process.out() + process.err()};
}

// Where the commands of a chapter run. finish(i) waits for what the i-th call of start() began.
class Place {
 public:
  virtual ~Place() = default;
  virtual const fs::path& folder() const = 0;
  virtual void start(const PageBlock& commands) = 0;
  virtual Ended finish(std::size_t started) = 0;

 protected:
  std::vector<std::string> shell(const PageBlock& commands) const {
    return {"/bin/bash", "-euo", "pipefail", "-c",
            "unset DDP_FLIGHT_RECORDER\ncd " + folder().string() + "\n" + commands.text};
  }
};

std::string path_with(const std::string& folder) { return "PATH=" + folder + ":" + std::getenv("PATH"); }

// The machine itself.
class OneMachine : public Place {
 public:
  explicit OneMachine(std::string programs = DDP_TEST_BIN_DIR) : programs_(std::move(programs)) {}

  const fs::path& folder() const override { return scratch_.path(); }

  void start(const PageBlock& commands) override {
    auto argv = shell(commands);
    Job::Options options;
    options.program = argv[0];
    options.environment = environment_;
    options.environment.push_back(path_with(programs_));
    options.environment.push_back("HOME=" + folder().string());  // nobody's token
    options.patience = kLimit;
    jobs_.push_back(std::make_unique<Job>(std::vector<std::string>(argv.begin() + 1, argv.end()), options));
  }

  Ended finish(std::size_t started) override { return end_of(*jobs_[started]); }

 protected:
  std::vector<std::string> environment_;
  std::string programs_;

 private:
  ScratchDirectory scratch_;
  std::vector<std::unique_ptr<Job>> jobs_;
};

// With an installed libddp, which CMake finds, and its programs.
class WithLibddp : public OneMachine {
 public:
  WithLibddp() {
    const std::string prefix = installed_.path().string();
    Job::Options options;
    options.program = DDP_GUIDE_CMAKE;
    Job install({"--install", DDP_GUIDE_BUILD_DIR, "--prefix", prefix}, options);
    if (install.wait() != 0) throw std::runtime_error(install.out() + install.err());
    programs_ = prefix + "/bin";
    environment_ = {"CMAKE_PREFIX_PATH=" + prefix, "CMAKE_GENERATOR=" DDP_GUIDE_GENERATOR, "CXX=" DDP_GUIDE_COMPILER};
  }

 private:
  ScratchDirectory installed_;
};

// With PyTorch.
class WithPytorch : public OneMachine {
 public:
  WithPytorch() {
    Job::Options options;
    options.program = python();
    options.patience = kLimit;
    Job probe({"-c", "import torch"}, options);
    if (probe.wait() != 0) throw Lacking(python() + " does not run or has no torch; ./test.sh --interop installs it");
    environment_ = {"PYTHON_EXEC=" + python()};
  }
};

// Hosts called node0 and node1.
class TwoMachines : public Place {
 public:
  TwoMachines() try : hosts_({.count = 2}) {
  } catch (const NoHosts& reason) {
    throw Lacking(reason.what());
  }

  const fs::path& folder() const override { return scratch_.path(); }

  void start(const PageBlock& commands) override {
    const int host = commands.name.empty() ? 0 : std::atoi(commands.name.c_str() + 4);
    std::vector<std::string> environment{path_with(DDP_TEST_BIN_DIR), "HOME=" + folder().string()};
    environment.insert(environment.end(), environment_.begin(), environment_.end());
    processes_.push_back(hosts_.run(host, shell(commands), environment));
  }

  Ended finish(std::size_t started) override { return end_of(processes_[started]); }

 protected:
  Hosts& hosts() { return hosts_; }
  std::vector<std::string> environment_;

 private:
  ScratchDirectory scratch_;
  Hosts hosts_;
  std::vector<HostProcess> processes_;
};

// The same, and node0 can log in to node1.
class TwoMachinesWithSsh : public TwoMachines {
 public:
  TwoMachinesWithSsh() {
    if (const auto why = Sshd::why_not(); !why.empty()) throw Lacking(why);
    const std::string option = "--ssh-args=";
    sshd_.emplace(Sshd::Options{.address = "0.0.0.0", .port = "22"}, false);
    environment_ = {"DDPRUN_SSH_ARGS=" + sshd_->ssh_arguments().substr(option.size())};
    server_.emplace(hosts().run(1, {"/bin/sh", "-c", "exec " + sshd_->command()}));
    if (!server_->prints("Server listening")) throw std::runtime_error("sshd: " + server_->err());
  }

 private:
  std::optional<Sshd> sshd_;
  std::optional<HostProcess> server_;
};

// The login node of a Slurm of two nodes.
class SlurmCluster : public Place {
 public:
  SlurmCluster() try : cluster_(Cluster::Options{}) {
  } catch (const NoCluster& reason) {
    throw Lacking(reason.what());
  }

  const fs::path& folder() const override { return cluster_.folder(); }
  void start(const PageBlock& commands) override { processes_.push_back(cluster_.run(shell(commands))); }

  Ended finish(std::size_t started) override { return end_of(processes_[started]); }

 private:
  Cluster cluster_;
  std::vector<HostProcess> processes_;
};

template <class Where>
std::unique_ptr<Place> make() {
  return std::make_unique<Where>();
}

// Pages whose commands run in one folder, one page after the other.
struct Chapter {
  const char* name;
  std::vector<const char*> pages;
  std::unique_ptr<Place> (*make_place)();
  bool is_for_dry_run = false;  // the commands in its tables are checked too
};

std::ostream& operator<<(std::ostream& out, const Chapter& chapter) { return out << chapter.name; }

const std::vector<Chapter>& chapters() {
  static const std::vector<Chapter> all = {
      {"FirstRun", {"first_run.md"}, make<OneMachine>},
      {"PytorchScript", {"pytorch_script.md"}, make<WithPytorch>},
      {"CppProgram",
       {"cpp_1_gradients.md", "cpp_2_data.md", "cpp_3_checkpoints.md", "cpp_4_elastic.md", "cpp_5_hang.md"},
       make<WithLibddp>},
      {"TwoMachines", {"two_machines.md"}, make<TwoMachines>},
      {"HostsBySsh", {"hosts_by_ssh.md"}, make<TwoMachinesWithSsh>},
      {"SlurmCluster", {"slurm_cluster.md"}, make<SlurmCluster>},
      {"Kubernetes", {"kubernetes.md"}, make<OneMachine>},
      {"WhenItFails", {"when_it_fails.md"}, make<OneMachine>},
      {"OtherLaunchers", {"other_launchers.md"}, make<OneMachine>, true},
      {"Troubleshooting", {"troubleshooting.md"}, make<OneMachine>},
      {"Glossary", {"glossary.md"}, make<OneMachine>}};
  return all;
}

const fs::path kGuide = fs::path(DDP_TEST_SOURCE_DIR) / "docs/guide";

std::string this_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

class Guide : public ::testing::TestWithParam<Chapter> {
 protected:
  // Commands of different hosts that follow each other run at the same time.
  void run_page(Place& place, const std::string& page) {
    const auto blocks = blocks_of(contents_of(kGuide / page));
    for (const auto& block : blocks) {
      const std::string where = "docs/guide/" + page + ":" + std::to_string(block.line);
      if (block.kind == PageBlock::Kind::file) {
        fs::create_directories((place.folder() / block.name).parent_path());
        std::ofstream(place.folder() / block.name) << block.text;
      } else if (block.kind == PageBlock::Kind::output) {
        if (!is_left_out_) running_.back().expected += block.text;
      } else if (is_left_out_ = !block.not_run.empty(); is_left_out_) {
        std::cout << where << ": not run: " << block.not_run << std::endl;
      } else {
        const auto is_in_the_way = [&](const Running& each) { return each.host.empty() || each.host == block.name; };
        if (block.name.empty() || std::any_of(running_.begin(), running_.end(), is_in_the_way)) finish(place);
        running_.push_back({block.name, where, started_++, {}});
        place.start(block);
      }
    }
    finish(place);
  }

  // The commands in the tables of a page, by --dry-run.
  void check_inline_commands(Place& place, const std::string& page) {
    for (const auto& command : inline_commands_of(contents_of(kGuide / page))) {
      running_.push_back({{}, "docs/guide/" + page + ": " + command, started_++, {}});
      place.start({.kind = PageBlock::Kind::commands,
                   .name = {},
                   .text = "ddprun --dry-run" + command.substr(6),
                   .line = 0,
                   .not_run = {}});
      finish(place);
    }
  }

 private:
  struct Running {
    std::string host;
    std::string where;
    std::size_t started;
    std::string expected;
  };

  void finish(Place& place) {
    for (const auto& each : running_) {
      SCOPED_TRACE(each.where);
      const auto ended = place.finish(each.started);
      EXPECT_EQ(ended.code, 0) << ended.printed;
      EXPECT_THAT(
          missing_lines(each.expected, ended.printed, {{place.folder().string(), "/home/you"}, {this_host(), "node0"}}),
          ::testing::IsEmpty())
          << ended.printed;
    }
    running_.clear();
  }

  std::vector<Running> running_;
  std::size_t started_ = 0;
  bool is_left_out_ = false;  // the newest commands of the page are not run
};

TEST_P(Guide, CommandsOfItsPagesPrintWhatThePagesShow) {
  std::unique_ptr<Place> place;
  try {
    place = GetParam().make_place();
  } catch (const Lacking& reason) {
    GTEST_SKIP() << reason.what();
  }
  for (const char* page : GetParam().pages) {
    if (HasFailure()) break;  // a page goes on with the files of those before it
    run_page(*place, page);
    if (GetParam().is_for_dry_run) check_inline_commands(*place, page);
  }
}

INSTANTIATE_TEST_SUITE_P(Chapters, Guide, ::testing::ValuesIn(chapters()),
                         [](const auto& chapter) { return std::string(chapter.param.name); });

TEST(GuidePages, EachIsInAChapterAndShowsSomethingToDoOrRead) {
  std::set<std::string> listed, there;
  for (const auto& chapter : chapters()) listed.insert(chapter.pages.begin(), chapter.pages.end());
  for (const auto& file : fs::directory_iterator(kGuide)) {
    if (file.path().extension() == ".md") there.insert(file.path().filename().string());
  }
  EXPECT_EQ(listed, there);
}

}  // namespace
}  // namespace ddp::test
