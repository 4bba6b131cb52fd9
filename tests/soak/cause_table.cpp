// Staged failures of one rank among peers that do not fail: which cause and exit code ddprun tells, over many trials
// each.
//
//   cause_table [--trials=N] [--only=HOW] [--idle]
//
// Everything runs on one core, beside a busy loop; --idle: on all cores, without the loop. --only: the failures whose
// name begins so; without it those of PyTorch but one are left out, because each process takes seconds to start.
//
// A failure that can't be staged here is named with the reason: some need a cgroup, others DDP_TEST_PYTHON, a Python
// with torch.
//
// Prints the table of docs/failures.md, and ends with 1 if any trial was wrong. Workers of PyTorch do not say why they
// end, as those of libddp do: there "not certain" is no wrong cause, and counted apart.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
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
  std::string only{};
  bool is_idle = false;
};

struct Placement {
  int nodes;
  int failing_rank;
};

constexpr Placement kOneNode{1, 1}, kTwoNodes{2, 1}, kAtEndpoint{2, 0};

enum class Answer { right, not_certain, wrong };

struct Staged {
  std::string how;
  std::string what;   // the rank does
  std::string cause;  // as ddprun says it, where it begins with a space of the failing rank; # is that rank or node
  int exit_code = 1;
  std::optional<int> or_exit_code{};  // the program may end in two ways
  // What the other node says and ends with, where that is not the same.
  std::string cause_there{};
  std::optional<int> exit_code_there{};
  bool is_left_out = false;  // if not named: it takes long
  std::string says{};        // also, on all nodes
};

const std::vector<Staged> kStaged{
    {"kill", "is killed by SIGKILL", " was killed by SIGKILL", 137},
    {"kill_200", "the same, teardown 0.2 s", " was killed by SIGKILL", 137},
    {"kill_2000", "the same, teardown 2 s", " was killed by SIGKILL", 137},
    {"oom", "takes memory until the kernel kills it", " was killed by SIGKILL (out of memory)", 137},
    {"oom_200", "the same, teardown 0.2 s", " was killed by SIGKILL (out of memory)", 137},
    {"oom_2000", "the same, teardown 2 s", " was killed by SIGKILL (out of memory)", 137},
    {"segv", "dies of SIGSEGV", " was killed by SIGSEGV", 139},
    {"segv_200", "the same, teardown 0.2 s", " was killed by SIGSEGV", 139},
    {"segv_2000", "the same, teardown 2 s", " was killed by SIGSEGV", 139},
    {"abort", "dies of SIGABRT", " was killed by SIGABRT", 134},
    {"abort_200", "the same, teardown 0.2 s", " was killed by SIGABRT", 134},
    {"abort_2000", "the same, teardown 2 s", " was killed by SIGABRT", 134},
    {"bus", "dies of SIGBUS", " was killed by SIGBUS", 135},
    {"bus_200", "the same, teardown 0.2 s", " was killed by SIGBUS", 135},
    {"bus_2000", "the same, teardown 2 s", " was killed by SIGBUS", 135},
    {"ill", "dies of SIGILL", " was killed by SIGILL", 132},
    {"ill_200", "the same, teardown 0.2 s", " was killed by SIGILL", 132},
    {"ill_2000", "the same, teardown 2 s", " was killed by SIGILL", 132},
    {"fpe", "dies of SIGFPE", " was killed by SIGFPE", 136},
    {"fpe_200", "the same, teardown 0.2 s", " was killed by SIGFPE", 136},
    {"fpe_2000", "the same, teardown 2 s", " was killed by SIGFPE", 136},
    {"exit", "calls `_exit(3)`", " ended with exit code 3", 3},
    {"throw", "throws an exception that `main` catches", " ended with exit code 1", 1},
    {"slow_throw", "the same, and ends 0.3 s after it has left its group", " ended with exit code 1", 1},
    {"late_kill", "the same, and meanwhile another rank is killed", " ended with exit code 1", 1},
    {"return", "leaves its group in order, and returns 3 from `main`", " ended with exit code 3", 3},
    {"abort_group", "calls `abort()` of its group, and throws", " ended with exit code 1", 1},
    {"disk_full", "throws because the disk is full", " ended with exit code 1", 1},
    {"hang",
     "does not come to a collective",
     " was killed by ddprun",
     128 + SIGTERM,
     {},
     {},
     {},
     false,
     "did not come to all_reduce"},
    {"guardian", "kills the guardian of its node", "guardian process was killed by SIGKILL", 137},
    {"agent", "kills the ddprun of its node", "", 1000 + SIGKILL, {}, "error: node #", 137},
    {"torch_raise",
     "PyTorch: raises an exception, under `@record`",
     " ",
     1,
     134,
     {},
     {},
     false,
     "cause: ValueError: the batch is empty"},
    {"torch_plain", "PyTorch: raises an exception, without `@record`", " ", 1, 134, {}, {}, true},
    {"torch_exit", "PyTorch: calls `sys.exit(3)`", " ", 3, 134, {}, {}, true},
    {"torch_abort", "PyTorch: calls `os.abort()`", " was killed by SIGABRT", 134, {}, {}, {}, true},
    {"torch_kill", "PyTorch: is killed by SIGKILL", " was killed by SIGKILL", 137, {}, {}, {}, true}};

bool takes_all_memory(const Staged& staged) { return staged.how.rfind("oom", 0) == 0; }
bool is_torch(const Staged& staged) { return staged.how.rfind("torch_", 0) == 0; }

constexpr std::size_t kCgroupBytes = std::size_t{256} << 20;

std::vector<std::string> with_worker(std::vector<std::string> options, const Staged& staged, int failing_rank) {
  const auto rank = std::to_string(failing_rank);
  if (is_torch(staged)) {
    options.insert(options.end(), {std::string(DDP_TEST_SOURCE_DIR) + "/tests/soak/failing_torch.py",
                                   staged.how.substr(staged.how.find('_') + 1), rank});
    return options;
  }
  options.insert(options.end(), {built("failing_worker"), staged.how, rank});
  return options;
}

// Why this failure can't be staged here.
std::string objection_to(const Staged& staged, const LimitedGroup& group) {
  if (takes_all_memory(staged) && !group.exists()) return "no cgroup with a limit of memory can be made here";
  if (is_torch(staged) && std::getenv("DDP_TEST_PYTHON") == nullptr)
    return "DDP_TEST_PYTHON names no Python with torch";
  return {};
}

// Of `text`, with the rank and the node that fail.
std::string filled_in(std::string text, int failing_rank) {
  const auto number = std::to_string(failing_rank);  // of several nodes each has one rank
  if (text.substr(0, 1) == " ") text.insert(0, "error: rank " + number);
  if (const auto at = text.find('#'); at != std::string::npos) text.replace(at, 1, number);
  return text;
}

// What was wrong is added to `wrong`.
Answer try_it(const Staged& staged, const Placement& placement, const LimitedGroup& group, std::string& wrong) {
  const auto [nodes, failing_rank] = placement;
  Job::Options how;
  if (is_torch(staged)) how.environment = {"PYTHON_EXEC=" + std::string(std::getenv("DDP_TEST_PYTHON"))};
  if (is_torch(staged)) how.patience = 3 * kPatience;
  std::vector<std::unique_ptr<Job>> jobs;
  const auto port = free_port();
  for (int node = 0; node < nodes; ++node) {
    // Each process of PyTorch takes seconds to start.
    const std::vector<std::string> alone{"--standalone",
                                         is_torch(staged) ? "--nproc-per-node=2" : "--nproc-per-node=3"},
        with_others{"--nnodes=" + std::to_string(nodes), "--node-rank=" + std::to_string(node),
                    "--master-addr=127.0.0.1", "--master-port=" + port, "--nproc-per-node=1"};
    // A node that shares the limit may lose a rank too, before the memory of the first one is free.
    how.before_exec = {};
    if (takes_all_memory(staged) && (nodes == 1 || node == failing_rank)) how.before_exec = [&group] { group.enter(); };
    jobs.push_back(std::make_unique<Job>(with_worker(nodes == 1 ? alone : with_others, staged, failing_rank), how));
  }
  auto answer = Answer::right;
  for (int node = 0; node < nodes; ++node) {
    auto& job = *jobs[static_cast<std::size_t>(node)];
    const bool is_there = nodes > 1 && node != failing_rank;
    const auto& cause = is_there && !staged.cause_there.empty() ? staged.cause_there : staged.cause;
    const int wanted_code = is_there ? staged.exit_code_there.value_or(staged.exit_code) : staged.exit_code;
    const int exit_code = job.wait();
    const bool is_code_right = exit_code == wanted_code || exit_code == staged.or_exit_code;
    const bool is_said = job.err().find(staged.says) != std::string::npos;
    if (is_code_right && is_said && job.err().find(filled_in(cause, failing_rank)) != std::string::npos) continue;
    const bool is_not_certain = is_torch(staged) && job.err().find(" (not certain)") != std::string::npos;
    answer = std::max(answer, is_not_certain ? Answer::not_certain : Answer::wrong);
    wrong += "exit code " + std::to_string(exit_code) + ", stderr:\n" + job.err();
  }
  return answer;
}

// Keeps this process, and all that it starts, on one core, and burns that until it is destroyed.
class BusyCore {
 public:
  BusyCore() {
    cpu_set_t cores;
    if (::sched_getaffinity(0, sizeof cores, &cores) != 0) throw std::runtime_error("sched_getaffinity");
    int last = CPU_SETSIZE - 1;
    while (!CPU_ISSET(last, &cores)) --last;
    CPU_ZERO(&cores);
    CPU_SET(last, &cores);
    if (::sched_setaffinity(0, sizeof cores, &cores) != 0) throw std::runtime_error("sched_setaffinity");
    thread_ = std::thread([this] {
      while (!is_over_.load(std::memory_order_relaxed)) {
      }
    });
  }
  ~BusyCore() {
    is_over_ = true;
    thread_.join();
  }
  BusyCore(const BusyCore&) = delete;
  BusyCore& operator=(const BusyCore&) = delete;

 private:
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string text = arguments[i];
    const auto value = text.substr(std::min(text.find('='), text.size() - 1) + 1);
    if (text == "--idle") {
      options.is_idle = true;
    } else if (text.rfind("--trials=", 0) == 0) {
      options.trials = std::stoi(value);
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
  std::optional<BusyCore> busy;
  if (!options.is_idle) busy.emplace();
  const LimitedGroup group(kCgroupBytes);
  int wrong_count = 0;
  std::printf("| what the rank does | one node | two nodes | at the endpoint |\n| --- | --- | --- | --- |\n");
  for (const auto& staged : kStaged) {
    if (staged.how.rfind(options.only, 0) != 0 || (options.only.empty() && staged.is_left_out)) continue;
    std::printf("| %s |", staged.what.c_str());
    if (const auto why = objection_to(staged, group); !why.empty()) {
      std::printf(" skipped: %s |\n", why.c_str());
      continue;
    }
    for (const auto& placement : {kOneNode, kTwoNodes, kAtEndpoint}) {
      int count[3] = {};
      for (int trial = 0; trial < options.trials; ++trial) {
        std::string wrong;
        const auto answer = try_it(staged, placement, group, wrong);
        ++count[static_cast<int>(answer)];
        if (answer == Answer::wrong && wrong_count++ < 10)
          std::fprintf(stderr, "%s, %d nodes, rank %d: %s\n", staged.how.c_str(), placement.nodes,
                       placement.failing_rank, wrong.c_str());
      }
      std::printf(" %d of %d", count[0], options.trials);
      if (count[1] > 0) std::printf(", %d not certain", count[1]);
      std::printf(" |");
      std::fflush(stdout);
    }
    std::printf("\n");
  }
  return wrong_count == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ddp::test

int main(int count, char** arguments) { return ddp::test::run(ddp::test::parse(count, arguments)); }
