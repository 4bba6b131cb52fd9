// Staged failures of one rank among peers of libddp: which cause and exit code ddprun tells, over many trials each.
//
//   cause_table [--trials=N] [--busy] [--mebibytes=N] [--only=HOW]
//
// --busy: a busy loop runs beside the job on every core. --mebibytes: what the failing rank holds in the trials with a
// long end. Prints a row of the table in docs/failures.md for each failure, and ends with 1 if any trial was wrong.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/free_port.hpp"
#include "tests/integration/job.hpp"

namespace ddp::test {
namespace {

struct Options {
  int trials = 20;
  bool is_busy = false;
  int mebibytes = 1024;
  std::string only{};
};

struct Staged {
  std::string how;
  std::string cause;  // as ddprun says it
  int exit_code = 1;
};

const std::vector<Staged> kStaged{
    {"kill", "was killed by SIGKILL", 137},  {"segv", "was killed by SIGSEGV", 139},
    {"abort", "was killed by SIGABRT", 134}, {"exit", "ended with exit code 3", 3},
    {"throw", "ended with exit code 1", 1},  {"slow_throw", "ended with exit code 1", 1},
    {"return", "ended with exit code 3", 3}, {"abort_group", "ended with exit code 1", 1}};

constexpr int kFailingRank = 1;  // not on the node that serves the endpoint, where there are two

std::vector<std::string> with_worker(std::vector<std::string> options, const Staged& staged, int mebibytes) {
  for (const auto& word :
       {built("failing_worker"), staged.how, std::to_string(kFailingRank), std::to_string(mebibytes)})
    options.push_back(word);
  return options;
}

// Empty if it was right.
std::string try_it(const Staged& staged, int nodes, int mebibytes) {
  std::vector<std::unique_ptr<Job>> jobs;
  if (nodes == 1) {
    jobs.push_back(std::make_unique<Job>(with_worker({"--standalone", "--nproc-per-node=3"}, staged, mebibytes)));
  } else {
    const auto port = free_port();
    for (int node = 0; node < nodes; ++node)
      jobs.push_back(
          std::make_unique<Job>(with_worker({"--nnodes=" + std::to_string(nodes), "--node-rank=" + std::to_string(node),
                                             "--master-addr=127.0.0.1", "--master-port=" + port, "--nproc-per-node=1"},
                                            staged, mebibytes)));
  }
  const auto wanted = "error: rank " + std::to_string(kFailingRank) + " " + staged.cause;
  std::string wrong;
  for (auto& job : jobs) {
    const int exit_code = job->wait();
    if (exit_code != staged.exit_code || job->err().find(wanted) == std::string::npos)
      wrong += "exit code " + std::to_string(exit_code) + ", stderr:\n" + job->err();
  }
  return wrong;
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
  int wrong_count = 0;
  for (const auto& staged : kStaged) {
    if (!options.only.empty() && staged.how != options.only) continue;
    for (const int nodes : {1, 2})
      for (const int mebibytes : {0, options.mebibytes}) {
        int right = 0;
        for (int trial = 0; trial < options.trials; ++trial) {
          const auto wrong = try_it(staged, nodes, mebibytes);
          if (wrong.empty()) {
            ++right;
          } else if (wrong_count++ < 10) {
            std::fprintf(stderr, "%s, %d nodes, %d MiB: %s\n", staged.how.c_str(), nodes, mebibytes, wrong.c_str());
          }
        }
        std::printf("| %s | %d | %d | %d of %d |\n", staged.how.c_str(), nodes, mebibytes, right, options.trials);
        std::fflush(stdout);
      }
  }
  return wrong_count == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ddp::test

int main(int count, char** arguments) { return ddp::test::run(ddp::test::parse(count, arguments)); }
