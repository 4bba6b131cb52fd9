// How long after the loss of a node, and the start of another one in its place, all workers of the job have started.
//
// Hosts are namespaces (tests/multihost), each with one ddprun of two workers, which say when they start and wait. The
// new ddprun has the same command line and address as the lost one. The time is from the fault or from the start of the
// new ddprun, whichever is later, to the last worker's start in a round of all nodes.
//
// The rows combine what is lost (node 0, node 1), how (its agent; its agent and guardian in one instant; a crash: all
// processes, and its link until the replacement), when it is replaced, how nodes find each other (c10d with a numeric
// endpoint; static: --node-rank and --master-addr), how many there are, and who serves the endpoint. Each two values
// occur together in at least two rows, where there are as many.
//
//   replaced_node_benchmark [--trials=N] [--row=N] [--torchrun=PYTHON]      default 3 trials of each row
//
// With --torchrun torchrun takes the place of ddprun, in the rows that it can have: no daemon, no guardian.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "benchmarks/common/measure.hpp"
#include "benchmarks/recovery/starts.hpp"
#include "tests/multihost/hosts.hpp"

namespace {

namespace fs = std::filesystem;
namespace bench = ddp::benchmarks;
using ddp::test::HostProcess;
using ddp::test::Hosts;
using namespace std::chrono_literals;

constexpr int kWorkers = 2;  // of each node
constexpr std::chrono::seconds kPatience{40}, kPythonPatience{90};

// --- rows ---

struct Factor {
  const char* name;
  std::vector<const char*> values;
};

enum { kNode, kFault, kDelay, kBackend, kNodes, kServer, kFactors };

const std::array<Factor, kFactors> factors{{{"lost", {"node 0", "node 1"}},
                                            {"fault", {"agent", "agent, guardian", "crash"}},
                                            {"replaced after", {"0 s", "2 s", "20 s"}},
                                            {"backend", {"c10d", "static"}},
                                            {"--nnodes", {"1:3", "2:3", "3", "2"}},
                                            {"endpoint", {"a node", "daemon"}}}};

using Row = std::array<int, kFactors>;  // an index into the values of each factor

// With --node-rank and --master-addr the number of nodes is fixed, and node 0 serves.
bool is_possible(const Row& row) { return row[kBackend] == 0 || (row[kNodes] >= 2 && row[kServer] == 0); }

std::vector<Row> all_rows() {
  std::vector<Row> out{{}};
  for (int factor = 0; factor < kFactors; ++factor) {
    std::vector<Row> longer;
    for (const Row& row : out) {
      for (int value = 0; value < static_cast<int>(factors[static_cast<std::size_t>(factor)].values.size()); ++value) {
        longer.push_back(row);
        longer.back()[static_cast<std::size_t>(factor)] = value;
      }
    }
    out = std::move(longer);
  }
  std::erase_if(out, [](const Row& row) { return !is_possible(row); });
  return out;
}

// The row with the most pairs of values that occur less than twice so far, one after the other.
std::vector<Row> pairwise_rows() {
  std::vector<Row> left = all_rows(), out;
  std::map<std::array<int, 4>, int> seen;
  const auto pairs_of = [](const Row& row) {
    std::vector<std::array<int, 4>> pairs;
    for (int a = 0; a < kFactors; ++a) {
      for (int b = a + 1; b < kFactors; ++b)
        pairs.push_back({a, row[static_cast<std::size_t>(a)], b, row[static_cast<std::size_t>(b)]});
    }
    return pairs;
  };
  const auto gain = [&](const Row& row) {
    int sum = 0;
    for (const auto& pair : pairs_of(row)) sum += std::max(0, 2 - seen[pair]);
    return sum;
  };
  while (!left.empty()) {
    const auto best =
        std::max_element(left.begin(), left.end(), [&](const Row& a, const Row& b) { return gain(a) < gain(b); });
    if (gain(*best) == 0) break;
    for (const auto& pair : pairs_of(*best)) ++seen[pair];
    out.push_back(*best);
    left.erase(best);
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string text_of(const Row& row) {
  std::string text;
  for (std::size_t factor = 0; factor < kFactors; ++factor)
    text += "| " + std::string(factors[factor].values[static_cast<std::size_t>(row[factor])]) + " ";
  return text;
}

// --- a trial ---

fs::path own_program, folder;
std::string python;  // of torchrun; empty: ddprun

pid_t guardian_of(pid_t agent) {
  const auto pid = std::to_string(agent);
  std::ifstream file("/proc/" + pid + "/task/" + pid + "/children");
  pid_t child = -1;
  file >> child;
  return child;
}

class Trial {
 public:
  explicit Trial(const Row& row, int number)
      : row_(row),
        nodes_(row[kNodes] == 3 ? 2 : 3),
        lost_(row[kNode]),
        hosts_({.count = nodes_ + 1}),
        starts_(folder / ("fifo_" + std::to_string(number))),
        log_(folder / ("log_" + std::to_string(number))) {}

  // Milliseconds; throws where not all workers start in time.
  double run() {
    const bool has_daemon = row_[kServer] == 1;
    if (has_daemon) {
      processes_.push_back(start(nodes_, {own_program.parent_path() / "ddp-rendezvous", "--port=29500"}));
    }
    const auto begin = bench::now();
    for (int node = 0; node < nodes_; ++node) agents_.push_back(start(node, ddprun(node)));
    wait_for_all(begin, "its start");
    // Moments spread evenly over a second (golden ratio), so that faults meet every phase of what pings.
    phase_ = std::fmod(phase_ + 0.618, 1);
    std::this_thread::sleep_for(std::chrono::duration<double>(1.2 + phase_));
    const auto broken = bench::now();
    break_node();
    const std::chrono::seconds delay(std::array{0, 2, 20}[static_cast<std::size_t>(row_[kDelay])]);
    std::this_thread::sleep_for(delay - std::chrono::nanoseconds(bench::now() - broken));
    if (row_[kFault] == 2) hosts_.heal(lost_);
    const auto since = bench::now();
    agents_.push_back(start(lost_, ddprun(lost_)));
    return bench::ms_until_all_started(wait_for_all(since, "the loss of node " + std::to_string(lost_)), since);
  }

 private:
  std::vector<std::string> ddprun(int node) const {
    std::vector<std::string> words{own_program.parent_path() / "ddprun"};
    if (!python.empty()) words = {python, "-m", "torch.distributed.run", "--local-addr=" + Hosts::ipv4(node)};
    words.insert(words.end(), {"--nproc-per-node=" + std::to_string(kWorkers), "--max-restarts=10", "--no-python"});
    const std::string nodes = factors[kNodes].values[static_cast<std::size_t>(row_[kNodes])];
    const std::string server = Hosts::ipv4(row_[kServer] == 1 ? nodes_ : 0);
    words.push_back("--nnodes=" + nodes);
    if (row_[kBackend] == 1) {
      words.insert(words.end(),
                   {"--node-rank=" + std::to_string(node), "--master-addr=" + server, "--master-port=29500"});
    } else {
      words.insert(words.end(), {"--rdzv-backend=c10d", "--rdzv-endpoint=" + server + ":29500", "--rdzv-id=recovery",
                                 "--node-rank=" + std::to_string(node),
                                 "--rdzv-conf=last_call_timeout=" + std::string(python.empty() ? "0.1" : "1")});
    }
    words.insert(words.end(), {own_program, "--worker", starts_.path()});
    return words;
  }

  HostProcess start(int host, std::vector<std::string> words) {
    words.insert(words.begin(), {"sh", "-c", "exec \"$@\" >>" + log_.string() + " 2>&1", "sh"});
    return hosts_.run(host, words);
  }

  bench::Workers wait_for_all(bench::Nanoseconds since, const std::string& event) {
    const auto patience = python.empty() ? kPatience : kPythonPatience;
    auto workers = starts_.wait(nodes_ * kWorkers, since, patience);
    if (workers.empty())
      throw std::runtime_error("not all workers within " + std::to_string(patience.count()) + " s after " + event +
                               "; " + log_.string());
    return workers;
  }

  void break_node() {
    auto& agent = agents_.at(static_cast<std::size_t>(lost_));
    if (row_[kFault] == 2) {
      hosts_.cut(lost_);
      hosts_.run(lost_, {"kill", "-9", "-1"}).wait();
    } else {
      const pid_t guardian = guardian_of(agent.pid());
      if (row_[kFault] == 1 && guardian > 0) ::kill(guardian, SIGKILL);
      agent.kill(SIGKILL);
    }
    agent.wait();  // its port is free then
  }

  inline static double phase_ = 0;
  const Row row_;
  const int nodes_, lost_;
  Hosts hosts_;
  bench::Starts starts_;
  const fs::path log_;
  std::vector<HostProcess> processes_, agents_;
};

// Whether all trials recovered.
bool time_row(const Row& row, int trials) {
  static int number = 0;
  std::vector<double> ms;
  std::string failures;
  for (int trial = 0; trial < trials; ++trial) {
    try {
      ms.push_back(Trial(row, number++).run());
    } catch (const std::runtime_error& error) {
      failures += std::string(" ") + error.what();
    }
  }
  std::printf("%s| %zu of %d ", text_of(row).c_str(), ms.size(), trials);
  if (ms.empty()) {
    std::printf("| | |%s\n", failures.c_str());
  } else {
    std::printf("| %.0f | %.0f |%s\n", bench::median(ms), *std::max_element(ms.begin(), ms.end()), failures.c_str());
  }
  return failures.empty();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--worker") return bench::be_worker(argv[2]);
  int trials = 3, only = 0;
  const auto rows = pairwise_rows();
  for (int i = 1; i < argc; ++i) {
    const bool is_trials = std::sscanf(argv[i], "--trials=%d", &trials) == 1 && trials >= 1;
    const std::string word = argv[i], option = "--torchrun=";
    const bool is_python = word.rfind(option, 0) == 0 && word.size() > option.size();
    if (is_python) python = word.substr(option.size());
    const bool is_row =
        std::sscanf(argv[i], "--row=%d", &only) == 1 && only >= 1 && only <= static_cast<int>(rows.size());
    if (is_trials || is_row || is_python) continue;
    std::fprintf(stderr,
                 "error: '%s' is no option of this benchmark\nwhere: argument %d\n"
                 "try:   replaced_node_benchmark [--trials=20] [--row=1 to %zu] [--torchrun=PYTHON]\n",
                 argv[i], i, rows.size());
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  own_program = fs::read_symlink("/proc/self/exe");
  std::string pattern = fs::temp_directory_path() / "replaced_node_benchmark.XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) {
    std::perror("replaced_node_benchmark");
    return 1;
  }
  folder = pattern;
  ::setenv("TMPDIR", folder.c_str(), 1);
  bool is_good = true;
  try {
    for (const auto& factor : factors) std::printf("| %s ", factor.name);
    std::printf("| recovered | median, ms | most, ms |\n");
    for (std::size_t i = 0; i < factors.size() + 3; ++i) std::printf("| --- ");
    std::printf("|\n");
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const bool is_chosen = only == 0 || only == static_cast<int>(i) + 1;
      const bool can_have = python.empty() || (rows[i][kServer] == 0 && rows[i][kFault] != 1);
      if (is_chosen && can_have) is_good = time_row(rows[i], trials) && is_good;
    }
  } catch (const ddp::test::NoHosts& reason) {
    std::printf("skipped: %s\n", reason.what());
  }
  if (is_good) fs::remove_all(folder);  // else what the programs said is there
  return is_good ? 0 : 1;
}
