// How long after a fault all workers of the next round have started.
//
// The fault comes from here: SIGKILL of a worker, of an agent with or without all its processes, or SIGSTOP of a whole
// node. A worker is this program again: it writes one line into a FIFO, with the time, and waits. The time printed is
// from just before the signal to the last of these lines, so what a real worker does after its start is not in it.
//
// One side is ddprun, the other torchrun, where a Python with torch is found: DDP_TEST_PYTHON, else the one in
// build/interop/venv (`./test.sh --interop` makes it), else python3. Both get the same command line, and take turns
// within each round. The bare side ends and starts the same workers with no launcher at all.
//
//   recovery_benchmark [rounds] [--all]      default 5; --all tries torchrun where an agent dies, too, once each
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "benchmarks/common/measure.hpp"
#include "benchmarks/recovery/starts.hpp"

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;
using ddp::benchmarks::arguments_of;
using ddp::benchmarks::be_worker;
using ddp::benchmarks::median;
using ddp::benchmarks::ms_until_all_started;
using ddp::benchmarks::Nanoseconds;
using ddp::benchmarks::now;
using ddp::benchmarks::Starts;
using ddp::benchmarks::Workers;

constexpr std::chrono::seconds kPatience{20};
constexpr std::chrono::seconds kPythonPatience{90};
constexpr int kRoundsMax = 99;  // with one to warm up, the 100 of --max-restarts

pid_t spawn(const Words& words, const std::string& output = "/dev/null") {
  auto arguments = arguments_of(words);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::system_error(error, std::generic_category(), words[0]);
  return pid;
}

// A process and its descendants, ancestors first. Both launchers start their children in their main thread.
std::vector<pid_t> tree_of(pid_t root) {
  std::vector<pid_t> out{root};
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto pid = std::to_string(out[i]);
    std::ifstream file("/proc/" + pid + "/task/" + pid + "/children");
    for (pid_t child = 0; file >> child;) out.push_back(child);
  }
  return out;
}

// Orphans have become children of this process, a subreaper, so its tree is all that it ever started.
void end_all_processes() {
  do {
    const auto own = tree_of(::getpid());
    for (auto pid = own.begin() + 1; pid != own.end(); ++pid) ::kill(*pid, SIGKILL);
  } while (::waitpid(-1, nullptr, 0) > 0);
}

struct Launcher {
  std::string name;
  Words command;
  std::chrono::seconds patience;
};

struct Shape {
  std::string nodes = "1";  // --nnodes
  int agents = 1;
  int workers = 4;   // of each agent
  std::string conf;  // further pairs of --rdzv-conf
};

fs::path own_program, folder;  // folder: of this run, for FIFOs and what the launchers print and leave

std::string fresh_name(const std::string& stem) {
  static int count = 0;
  return folder / (stem + "_" + std::to_string(count++));
}

std::string free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool bound = ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  ::close(fd);
  if (!bound) throw std::runtime_error("no free port on 127.0.0.1");
  return std::to_string(ntohs(address.sin_port));
}

// Workers under one agent or several, the first of which serves the endpoint.
class Job {
 public:
  Job(const Launcher& launcher, const Shape& shape) : launcher_(launcher), starts_(fresh_name("fifo")) {
    const std::string port = free_port();
    for (int i = 0; i < shape.agents; ++i) {
      Words words = launcher.command;
      const auto add = [&](const Words& more) { words.insert(words.end(), more.begin(), more.end()); };
      add({"--nproc-per-node=" + std::to_string(shape.workers), "--max-restarts=100", "--no-python"});
      if (shape.agents == 1)
        add({"--standalone"});
      else
        add({"--nnodes=" + shape.nodes, "--node-rank=" + std::to_string(i), "--rdzv-backend=c10d",
             "--rdzv-endpoint=127.0.0.1:" + port, "--rdzv-id=recovery", "--local-addr=127.0.0.1",
             "--rdzv-conf=is_host=" + std::string(i == 0 ? "true" : "false") + shape.conf});
      add({own_program, "--worker", starts_.path()});
      agents_.push_back(spawn(words, fresh_name(launcher.name) + ".log"));
    }
    wait_for_round(shape.agents * shape.workers, 0, "its start");
  }

  [[nodiscard]] pid_t agent(std::size_t index) const { return agents_.at(index); }
  [[nodiscard]] const Workers& workers() const { return workers_; }

  // Lets the job come to rest, sends the signal; returns the ms until all workers of the next round have started.
  double recover_from(int signal_number, const std::vector<pid_t>& victims, int world_size, const std::string& fault) {
    // Moments spread evenly over a second (golden ratio), so that faults meet every phase of what polls or pings.
    phase_ = std::fmod(phase_ + 0.618, 1);
    std::this_thread::sleep_for(std::chrono::duration<double>(0.2 + phase_));
    const auto begin = now();
    for (const pid_t pid : victims) ::kill(pid, signal_number);
    wait_for_round(world_size, begin, fault);
    return ms_until_all_started(workers_, begin);
  }

 private:
  void wait_for_round(int world_size, Nanoseconds since, const std::string& event) {
    workers_ = starts_.wait(world_size, since, launcher_.patience);
    if (workers_.empty())
      throw std::runtime_error(launcher_.name + ": no round of " + std::to_string(world_size) + " workers within " +
                               std::to_string(launcher_.patience.count()) + " s after: " + event);
  }

  inline static double phase_ = 0;
  const Launcher& launcher_;
  Starts starts_;
  std::vector<pid_t> agents_;
  Workers workers_;  // of the running round
};

// The workers alone: what their own stop and start take.
class BareWorkers {
 public:
  explicit BareWorkers(int count) : count_(count) {}

  // The first time they only start.
  double restart() {
    const auto begin = now();
    for (std::size_t i = 0; i < pids_.size(); ++i) {
      ::kill(pids_[i], i == 0 ? SIGKILL : SIGTERM);
      if (i == 0) ::waitpid(pids_[i], nullptr, 0);  // a launcher hears of the first death, then stops the others
    }
    for (std::size_t i = 1; i < pids_.size(); ++i) ::waitpid(pids_[i], nullptr, 0);
    pids_.clear();
    ::setenv("WORLD_SIZE", std::to_string(count_).c_str(), 1);
    for (int i = 0; i < count_; ++i) {
      ::setenv("RANK", std::to_string(i).c_str(), 1);
      pids_.push_back(spawn({own_program, "--worker", starts_.path()}));
    }
    ::unsetenv("RANK");
    ::unsetenv("WORLD_SIZE");
    const auto workers = starts_.wait(count_, begin, kPatience);
    if (workers.empty()) throw std::runtime_error("bare workers did not start within 20 s");
    return ms_until_all_started(workers, begin);
  }

 private:
  int count_;
  Starts starts_{fresh_name("fifo")};
  std::vector<pid_t> pids_;
};

void print_row(const std::string& scenario, const std::string& side, const std::vector<double>& ms,
               std::optional<double> less, std::optional<double> ddprun_ms) {
  const auto [least, most] = std::minmax_element(ms.begin(), ms.end());
  std::printf("%-36s %-9s %10.1f %10.1f %10.1f", scenario.c_str(), side.c_str(), median(ms), *least, *most);
  less ? std::printf(" %10.1f", median(ms) - *less) : std::printf(" %10s", "");
  ddprun_ms ? std::printf(" %10.1f\n", median(ms) / *ddprun_ms) : std::printf("\n");
}

// One job of each side throughout, whose workers are killed in turn.
void time_killed_worker(const std::string& scenario, const std::vector<Launcher>& launchers, const Shape& shape,
                        int rounds) {
  std::vector<std::unique_ptr<Job>> jobs;
  for (const auto& launcher : launchers) jobs.push_back(std::make_unique<Job>(launcher, shape));
  const int world_size = shape.agents * shape.workers;
  BareWorkers bare(world_size);
  bare.restart();
  std::vector<double> bare_ms;
  std::vector<std::vector<double>> ms(jobs.size());
  for (int round = -1; round < rounds; ++round) {  // the first one warms up
    if (round >= 0) bare_ms.push_back(bare.restart());
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const pid_t victim = jobs[i]->workers().at(static_cast<std::size_t>((round + 1) % world_size)).pid;
      const double taken = jobs[i]->recover_from(SIGKILL, {victim}, world_size, "SIGKILL of a worker");
      if (round >= 0) ms[i].push_back(taken);
    }
  }
  print_row(scenario, "bare", bare_ms, {}, {});
  for (std::size_t i = 0; i < jobs.size(); ++i)
    print_row(scenario, launchers[i].name, ms[i], median(bare_ms), median(ms[0]));
}

enum class Victims { agent, agent_and_workers, all_processes };

struct NodeLoss {
  const char* name;
  int signal_number;
  Victims victims;
  Shape shape;
  int node;  // the one that is lost; 0 serves the endpoint
  double limit_ms = 0;
  bool collective_breaks = false;  // one of the workers that stay dies too, as it may in a collective with the dead
};

// A new job each time, which loses a node and goes on with the others.
void time_lost_node(const NodeLoss& loss, const Launcher& launcher, int rounds) {
  std::vector<double> ms;
  for (int round = 0; round < rounds; ++round) {
    Job job(launcher, loss.shape);
    const auto node = tree_of(job.agent(static_cast<std::size_t>(loss.node)));
    const auto is_of_node = [&](pid_t pid) { return std::find(node.begin(), node.end(), pid) != node.end(); };
    auto victims = loss.victims == Victims::all_processes ? node : std::vector{node[0]};
    bool one_broke = !loss.collective_breaks;
    for (const auto& worker : job.workers())
      if (is_of_node(worker.pid) ? loss.victims == Victims::agent_and_workers : !std::exchange(one_broke, true))
        victims.push_back(worker.pid);
    ms.push_back(
        job.recover_from(loss.signal_number, victims, (loss.shape.agents - 1) * loss.shape.workers, loss.name));
    end_all_processes();
  }
  print_row(loss.name, launcher.name, ms, loss.limit_ms > 0 ? std::optional(loss.limit_ms) : std::nullopt, {});
}

// Its path or name, or nothing.
std::string find_python_with_torch() {
  const char* given = std::getenv("DDP_TEST_PYTHON");
  const auto venv = own_program.parent_path() / "../../interop/venv/bin/python";
  const std::string python = given != nullptr ? given : ::access(venv.c_str(), X_OK) == 0 ? venv.string() : "python3";
  try {
    int status = -1;
    ::waitpid(spawn({python, "-c", "import importlib.util, sys; sys.exit(not importlib.util.find_spec('torch'))"}),
              &status, 0);
    return status == 0 ? python : "";
  } catch (const std::system_error&) {
    return "";
  }
}

void time_all(int rounds, bool all) {
  std::vector<Launcher> launchers{{"ddprun", {own_program.parent_path() / "ddprun"}, kPatience}};
  if (const auto python = find_python_with_torch(); !python.empty())
    launchers.push_back({"torchrun", {python, "-m", "torch.distributed.run"}, kPythonPatience});
  else
    std::printf("no Python with torch: ddprun alone; `./test.sh --interop` installs it\n");
  std::printf("%-36s %-9s %10s %10s %10s %10s %10s   median of %d rounds\n", "ms until the next round has started", "",
              "median", "least", "most", "less", "x ddprun", rounds);
  time_killed_worker("1 worker of 4 killed, one node", launchers, {}, rounds);
  end_all_processes();
  time_killed_worker("2 worker of 4 killed, two nodes", launchers, {"2", 2, 2, ""}, rounds);
  end_all_processes();
  const Shape two{"1:2", 2, 2, ",last_call_timeout=1"}, three{"2:3", 3, 1, ",last_call_timeout=1"};
  const auto within = [](Shape shape, const char* limit) {
    shape.conf += std::string(",heartbeat_timeout=") + limit;
    return shape;
  };
  const NodeLoss losses[] = {
      {"3 agent killed with its workers", SIGKILL, Victims::agent_and_workers, two, 1},
      {"4 only its agent killed", SIGKILL, Victims::agent, two, 1},
      {"5 all processes of a node killed", SIGKILL, Victims::all_processes, two, 1},
      {"6 node silent, limit 3 s", SIGSTOP, Victims::all_processes, within(two, "3"), 1, 3000},
      {"7 node silent, limit 250 ms", SIGSTOP, Victims::all_processes, within(two, "0.25"), 1, 250},
      {"8 endpoint of 3 nodes silent, 3 s", SIGSTOP, Victims::all_processes, within(three, "3"), 0, 3000},
      {"9 endpoint of 3 nodes killed", SIGKILL, Victims::all_processes, three, 0},
  };
  for (auto loss : losses) {
    time_lost_node(loss, launchers[0], rounds);
    if (!all || launchers.size() < 2 || loss.limit_ms > 0) continue;
    // torchrun hears of a dead node only by what its own workers make of it; after case 4 all workers go on.
    loss.collective_breaks = loss.victims != Victims::agent;
    try {
      time_lost_node(loss, launchers[1], 1);
    } catch (const std::runtime_error& error) {
      std::printf("%-36s %s\n", loss.name, error.what());
      end_all_processes();
    }
  }
  std::printf("less: without the bare workers' time in 1 and 2, without the heartbeat limit in 6 to 8\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--worker") return be_worker(argv[2]);
  int rounds = 5;
  bool all = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--all") {
      all = true;
    } else if (rounds = std::atoi(argv[i]); std::to_string(rounds) != word || rounds < 1 || rounds > kRoundsMax) {
      std::fprintf(stderr,
                   "error: '%s' is no number of rounds from 1 to %d, and not --all\nwhere: argument %d\n"
                   "try:   recovery_benchmark 5 --all\n",
                   argv[i], kRoundsMax, i);
      return 2;
    }
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  own_program = fs::read_symlink("/proc/self/exe");
  std::string pattern = fs::temp_directory_path() / "recovery_benchmark.XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr || ::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    std::perror("recovery_benchmark");
    return 1;
  }
  folder = pattern;
  ::setenv("TMPDIR", folder.c_str(), 1);  // torchrun leaves a folder there when it is killed
  try {
    time_all(rounds, all);
  } catch (const std::exception& error) {
    end_all_processes();
    std::fprintf(stderr, "error: %s\nwhere: after the last line above\ntry:   what the launchers said is in %s\n",
                 error.what(), folder.c_str());
    return 1;
  }
  fs::remove_all(folder);
  return 0;
}
