// Staged failures of one rank among peers of libddp: which cause and exit code ddprun tells, over many trials each.
//
//   cause_table [--trials=N] [--busy] [--mebibytes=N] [--only=HOW] [--at-endpoint]
//
// A failure that can't be staged here is named with the reason: one needs a cgroup, another DDP_TEST_PYTHON, a Python
// with torch. --mebibytes=0: short ends only.
//
// --busy: a busy loop runs beside the job on every core. --mebibytes: what the failing rank holds in the trials with a
// long end. --at-endpoint: only those on two nodes whose failing rank is on the node that serves the endpoint.
//
// Prints a row of the table in docs/failures.md for each failure, and ends with 1 if any trial was wrong. Workers of
// PyTorch do not say why they end, as those of libddp do: there "not certain" is no wrong cause, and counted apart.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/free_port.hpp"
#include "tests/integration/job.hpp"
#include "tests/integration/limited_group.hpp"

namespace ddp::test {
namespace {

struct Options {
  int trials = 20;
  bool is_busy = false;
  int mebibytes = 1024;
  std::string only{};
  bool is_at_endpoint = false;
};

struct Placement {
  const char* name;
  int nodes;
  int failing_rank;
};

constexpr Placement kPlacements[] = {{"one node", 1, 1}, {"two nodes", 2, 1}, {"two nodes, the endpoint's", 2, 0}};

enum class Answer { right, not_certain, wrong };

struct Staged {
  std::string how;
  std::string cause;  // as ddprun says it, where it begins with a space of the failing rank; # is that rank
  int exit_code = 1;
  // What the other node says and ends with, where that is not the same.
  std::string cause_there{};
  int exit_code_there = 0;
  std::optional<int> or_exit_code{};  // the program may end in two ways
};

const std::vector<Staged> kStaged{{"kill", " was killed by SIGKILL", 137},
                                  {"segv", " was killed by SIGSEGV", 139},
                                  {"abort", " was killed by SIGABRT", 134},
                                  {"exit", " ended with exit code 3", 3},
                                  {"throw", " ended with exit code 1", 1},
                                  {"slow_throw", " ended with exit code 1", 1},
                                  {"return", " ended with exit code 3", 3},
                                  {"abort_group", " ended with exit code 1", 1},
                                  {"oom", " was killed by SIGKILL (out of memory)", 137},
                                  {"hang", "cause: rank # did not come to all_reduce", 1},
                                  {"disk_full", " ended with exit code 1", 1},
                                  {"late_kill", " ended with exit code 1", 1},
                                  {"segv_200", " was killed by SIGSEGV", 139},
                                  {"segv_2000", " was killed by SIGSEGV", 139},
                                  {"abort_200", " was killed by SIGABRT", 134},
                                  {"abort_2000", " was killed by SIGABRT", 134},
                                  {"guardian", "ddprun's guardian process was killed by SIGKILL", 137,
                                   "its guardian process was killed by SIGKILL", 77},
                                  {"agent", "", 1000 + SIGKILL, "error: node 1 (host ", 77},
                                  // While Python ends, PyTorch may abort.
                                  {"torch_raise", " ", 1, {}, 0, 134},
                                  {"torch_plain", " ", 1, {}, 0, 134},
                                  {"torch_exit", " ", 3, {}, 0, 134},
                                  {"torch_abort", " was killed by SIGABRT", 134},
                                  {"torch_kill", " was killed by SIGKILL", 137}};

bool is_torch(const Staged& staged) { return staged.how.rfind("torch_", 0) == 0; }

// It is told otherwise where the endpoint's node itself is lost, and needs rank 0 beside the failing one.
bool is_not_for_endpoint(const Staged& staged) {
  return staged.how == "guardian" || staged.how == "agent" || staged.how == "late_kill";
}

constexpr std::size_t kCgroupBytes = std::size_t{256} << 20;

std::vector<std::string> with_worker(std::vector<std::string> options, const Staged& staged, int failing_rank,
                                     int mebibytes) {
  const auto rank = std::to_string(failing_rank);
  if (is_torch(staged)) {
    options.insert(options.end(), {std::string(DDP_TEST_SOURCE_DIR) + "/tests/soak/failing_torch.py",
                                   staged.how.substr(staged.how.find('_') + 1), rank});
    return options;
  }
  options.insert(options.end(), {built("failing_worker"), staged.how, rank, std::to_string(mebibytes)});
  return options;
}

// Why this failure can't be staged here.
std::string objection_to(const Staged& staged, const LimitedGroup& group) {
  if (staged.how == "oom" && !group.exists()) return "no cgroup with a limit of memory can be made here";
  if (is_torch(staged) && std::getenv("DDP_TEST_PYTHON") == nullptr)
    return "DDP_TEST_PYTHON names no Python with torch";
  return {};
}

// What was wrong is added to `wrong`.
Answer try_it(const Staged& staged, const Placement& placement, int mebibytes, const LimitedGroup& group,
              std::string& wrong) {
  const int nodes = placement.nodes;
  Job::Options how;
  if (staged.how == "oom") how.before_exec = [&group] { group.enter(); };
  if (is_torch(staged)) how.environment = {"PYTHON_EXEC=" + std::string(std::getenv("DDP_TEST_PYTHON"))};
  if (is_torch(staged)) how.patience = 3 * kPatience;
  std::vector<std::unique_ptr<Job>> jobs;
  if (nodes == 1) {
    jobs.push_back(std::make_unique<Job>(
        with_worker({"--standalone", "--nproc-per-node=3"}, staged, placement.failing_rank, mebibytes), how));
  } else {
    const auto port = free_port();
    for (int node = 0; node < nodes; ++node)
      jobs.push_back(
          std::make_unique<Job>(with_worker({"--nnodes=" + std::to_string(nodes), "--node-rank=" + std::to_string(node),
                                             "--master-addr=127.0.0.1", "--master-port=" + port, "--nproc-per-node=1"},
                                            staged, placement.failing_rank, mebibytes),
                                how));
  }
  auto answer = Answer::right;
  for (auto& job : jobs) {
    const bool is_there = nodes > 1 && job == jobs.front() && !staged.cause_there.empty();
    const auto rank = std::to_string(placement.failing_rank);
    auto wanted = is_there ? staged.cause_there : staged.cause;
    if (wanted.substr(0, 1) == " ") wanted.insert(0, "error: rank " + rank);
    if (const auto at = wanted.find('#'); at != std::string::npos) wanted.replace(at, 1, rank);
    const int exit_code = job->wait();
    const bool is_code_right =
        exit_code == (is_there ? staged.exit_code_there : staged.exit_code) || exit_code == staged.or_exit_code;
    if (is_code_right && job->err().find(wanted) != std::string::npos) continue;
    const bool is_not_certain = is_torch(staged) && job->err().find(" (not certain)") != std::string::npos;
    answer = std::max(answer, is_not_certain ? Answer::not_certain : Answer::wrong);
    wrong += "exit code " + std::to_string(exit_code) + ", stderr:\n" + job->err();
  }
  return answer;
}

// Burns a core each until it is destroyed.
class BusyLoops {
 public:
  explicit BusyLoops(unsigned count) {
    for (unsigned i = 0; i < count; ++i)
      threads_.emplace_back([this] {
        while (!is_over_.load(std::memory_order_relaxed)) {
        }
      });
  }
  ~BusyLoops() {
    is_over_ = true;
    for (auto& thread : threads_) thread.join();
  }
  BusyLoops(const BusyLoops&) = delete;
  BusyLoops& operator=(const BusyLoops&) = delete;

 private:
  std::atomic<bool> is_over_{false};
  std::vector<std::thread> threads_;
};

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string text = arguments[i];
    const auto value = text.substr(std::min(text.find('='), text.size() - 1) + 1);
    if (text == "--busy") {
      options.is_busy = true;
    } else if (text == "--at-endpoint") {
      options.is_at_endpoint = true;
    } else if (text.rfind("--trials=", 0) == 0) {
      options.trials = std::stoi(value);
    } else if (text.rfind("--mebibytes=", 0) == 0) {
      options.mebibytes = std::stoi(value);
    } else if (text.rfind("--only=", 0) == 0) {
      options.only = value;
    } else {
      std::fprintf(stderr, "cause_table: no such option: %s\n", text.c_str());
      std::exit(2);
    }
  }
  return options;
}

int run(const Options& options) {
  const BusyLoops busy(options.is_busy ? std::thread::hardware_concurrency() : 0);
  const LimitedGroup group(kCgroupBytes);
  int wrong_count = 0;
  for (const auto& staged : kStaged) {
    if (!options.only.empty() && staged.how != options.only) continue;
    if (const auto why = objection_to(staged, group); !why.empty()) {
      std::printf("| %s | skipped: %s |\n", staged.how.c_str(), why.c_str());
      continue;
    }
    for (const auto& placement : kPlacements)
      for (const int mebibytes : std::set<int>{0, options.mebibytes}) {
        const bool is_at_endpoint = placement.nodes > 1 && placement.failing_rank == 0;
        if (is_at_endpoint ? is_not_for_endpoint(staged) : options.is_at_endpoint) continue;
        if (mebibytes > 0 && (staged.how == "oom" || is_torch(staged))) continue;  // their own memory is what it is
        int count[3] = {};
        for (int trial = 0; trial < options.trials; ++trial) {
          std::string wrong;
          const auto answer = try_it(staged, placement, mebibytes, group, wrong);
          ++count[static_cast<int>(answer)];
          if (answer == Answer::wrong && wrong_count++ < 10)
            std::fprintf(stderr, "%s, %s, %d MiB: %s\n", staged.how.c_str(), placement.name, mebibytes, wrong.c_str());
        }
        std::printf("| %s | %s | %d | %d of %d", staged.how.c_str(), placement.name, mebibytes, count[0],
                    options.trials);
        if (count[1] > 0) std::printf(", %d not certain", count[1]);
        std::printf(" |\n");
        std::fflush(stdout);
      }
  }
  return wrong_count == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ddp::test

int main(int count, char** arguments) { return ddp::test::run(ddp::test::parse(count, arguments)); }
