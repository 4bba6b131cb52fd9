// How long it takes to start N trivial workers and see them all end, and what the launcher weighs meanwhile.
//
// One side is a bare loop that spawns N programs and waits for them: no launcher can be faster. The others are ddprun
// and what of mpirun and torchrun is installed: torchrun beside DDP_TEST_PYTHON, in build/interop/venv (`./test.sh
// --interop` makes it) or on PATH. Sides take turns within each round, because the machine's speed drifts; printed are
// medians, and the medians of the ratios to the bare loop and to ddprun of the same round.
//
//   launch_benchmark [rounds]      default 15
#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "benchmarks/common/measure.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;
using ddp::benchmarks::arguments_of;
using ddp::benchmarks::median;

constexpr double kHangSeconds = 60;  // an alarm ends a launcher that takes longer

struct Cost {
  double wall_ms = 0;
  double cpu_ms = 0;  // user and system, of the launcher and what it waited for
  int exit_code = 0;
};

pid_t spawn(const Words& words, bool quiet = true) {
  auto arguments = arguments_of(words);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (quiet)
    for (int fd = 0; fd < 3; ++fd)
      posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", fd == 0 ? O_RDONLY : O_WRONLY, 0);
  pid_t pid = -1;
  if (posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ) != 0) pid = -1;
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

double cpu_ms_of(const rusage& usage) {
  const auto ms = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) / 1e3;
  };
  return ms(usage.ru_utime) + ms(usage.ru_stime);
}

Cost time_launcher(const Words& words) {
  const auto begin = Clock::now();
  const pid_t pid = spawn(words);
  int status = 0;
  rusage usage{};
  ::wait4(pid, &status, 0, &usage);
  const double wall = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  return {wall, cpu_ms_of(usage), WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)};
}

Cost time_bare_loop(int workers) {
  const auto begin = Clock::now();
  Cost cost;
  for (int i = 0; i < workers; ++i) spawn({"/bin/true"}, false);
  for (int i = 0; i < workers; ++i) {
    rusage usage{};
    ::wait4(-1, nullptr, 0, &usage);
    cost.cpu_ms += cpu_ms_of(usage);
  }
  cost.wall_ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  return cost;
}

bool is_installed(const std::string& program) {
  std::istringstream path(std::getenv("PATH") != nullptr ? std::getenv("PATH") : "");
  for (std::string folder; std::getline(path, folder, ':');)
    if (::access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  return false;
}

struct Side {
  std::string name;
  std::function<Words(int workers, const Words& program)> command;
};

// Its path, or nothing.
std::string find_torchrun(const std::filesystem::path& own_folder) {
  const char* python = std::getenv("DDP_TEST_PYTHON");
  const auto venv = own_folder / "../../interop/venv/bin/python";
  const auto torchrun = (python != nullptr ? std::filesystem::path(python) : venv).parent_path() / "torchrun";
  if (::access(torchrun.c_str(), X_OK) == 0) return torchrun.lexically_normal();
  return is_installed("torchrun") ? "torchrun" : "";
}

// ddprun comes first.
std::vector<Side> sides(const std::filesystem::path& own_folder) {
  const std::string ddprun = own_folder / "ddprun";
  const auto with = [](Words words, const Words& program) {
    words.insert(words.end(), program.begin(), program.end());
    return words;
  };
  std::vector<Side> out{{"ddprun", [=](int n, const Words& program) {
                           return with({ddprun, "--standalone", "--nproc-per-node=" + std::to_string(n)}, program);
                         }}};
  for (const auto* name : {"mpirun.mpich", "mpirun.openmpi"})
    if (is_installed(name)) {
      const bool open = std::strcmp(name, "mpirun.openmpi") == 0;
      out.push_back({name, [=](int n, const Words& program) {
                       Words words{
                           "timeout",        "-k", "1", std::to_string(static_cast<int>(kHangSeconds)), name, "-n",
                           std::to_string(n)};
                       if (open) words.insert(words.end(), {"--oversubscribe", "--allow-run-as-root"});
                       return with(words, program);
                     }});
    }
  if (const auto torchrun = find_torchrun(own_folder); !torchrun.empty())
    out.push_back(
        {"torchrun", [=](int n, const Words& program) {
           return with({torchrun, "--standalone", "--no-python", "--nproc-per-node=" + std::to_string(n)}, program);
         }});
  return out;
}

// Proportional set size: shared pages count in shares.
double pss_megabytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/smaps_rollup");
  for (std::string word; file >> word;)
    if (word == "Pss:" && file >> word) return std::atof(word.c_str()) / 1024;
  return 0;
}

pid_t parent_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto at = text.rfind(')');
  return at == std::string::npos ? 0 : std::atoi(text.c_str() + at + 4);
}

// With `workers` of them running: the launcher, and between it and the workers whatever process it made. Returns the
// MB; `ddprun_megabytes` is 0 for ddprun itself.
double print_memory(const Side& side, int workers, double ddprun_megabytes) {
  const pid_t launcher = spawn(side.command(workers, {"tail", "-f", "/dev/null"}));
  std::map<pid_t, bool> helpers;  // processes on the way from a worker up to the launcher
  int found = 0;
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  while (found < workers && Clock::now() < deadline) {
    found = 0;
    helpers.clear();
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const pid_t pid = std::atoi(entry.path().filename().c_str());
      std::ifstream comm(entry.path() / "comm");
      std::string name;
      if (pid <= 0 || !std::getline(comm, name) || name != "tail") continue;
      std::map<pid_t, bool> way;
      pid_t up = parent_of(pid);
      for (; up > 1 && up != launcher; up = parent_of(up)) way[up] = true;
      if (up != launcher) continue;
      ++found;
      helpers.insert(way.begin(), way.end());
    }
    if (found < workers) ::usleep(1000);
  }
  double total = pss_megabytes(launcher);
  for (const auto& [pid, ignored] : helpers) total += pss_megabytes(pid);
  std::printf("%-16s %8d %12.1f %10.1f %10zu\n", side.name.c_str(), workers, total,
              ddprun_megabytes > 0 ? total / ddprun_megabytes : 1, helpers.size() + 1);
  std::fflush(stdout);
  ::kill(launcher, SIGTERM);
  ::waitpid(launcher, nullptr, 0);
  return total;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  if (rounds < 1) {
    std::fprintf(stderr, "error: '%s' is no number of rounds\nwhere: the first argument\ntry:   launch_benchmark 15\n",
                 argv[1]);
    return 2;
  }
  const auto own_folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const auto ddprun = own_folder / "ddprun";
  const auto all = sides(own_folder);
  std::printf("%-16s %8s %12s %10s %10s %10s %10s   of /bin/true, median of %d rounds\n", "", "workers", "wall ms",
              "cpu ms", "x bare", "x ddprun", "cpu x", rounds);
  for (const int workers : {1, 8, 64}) {
    std::vector<double> bare_wall, bare_cpu;
    std::vector<std::vector<double>> wall(all.size()), cpu(all.size()), to_bare(all.size()), to_ddprun(all.size()),
        cpu_to_ddprun(all.size());
    std::vector<int> failed(all.size());
    for (int round = -1; round < rounds; ++round) {  // the first one warms up
      const auto bare = time_bare_loop(workers);
      if (round >= 0) bare_wall.push_back(bare.wall_ms), bare_cpu.push_back(bare.cpu_ms);
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (all[i].name == "torchrun" && round >= 3) continue;  // seconds each; three will do
        const auto cost = time_launcher(all[i].command(workers, {"/bin/true"}));
        if (round < 0) continue;
        failed[i] += cost.exit_code != 0;
        wall[i].push_back(cost.wall_ms);
        cpu[i].push_back(cost.cpu_ms);
        to_bare[i].push_back(cost.wall_ms / bare.wall_ms);
        to_ddprun[i].push_back(cost.wall_ms / wall[0].back());
        cpu_to_ddprun[i].push_back(cost.cpu_ms / cpu[0].back());
      }
    }
    std::printf("%-16s %8d %12.2f %10.1f %10s\n", "bare loop", workers, median(bare_wall), median(bare_cpu), "1");
    for (std::size_t i = 0; i < all.size(); ++i)
      std::printf("%-16s %8d %12.2f %10.1f %10.2f %10.2f %10.2f%s\n", all[i].name.c_str(), workers, median(wall[i]),
                  median(cpu[i]), median(to_bare[i]), median(to_ddprun[i]), median(cpu_to_ddprun[i]),
                  failed[i] != 0 ? ("   " + std::to_string(failed[i]) + " runs failed").c_str() : "");
    std::fflush(stdout);
  }

  std::printf("\n%-16s %8s %12s %10s %10s   while the workers run, summed PSS without theirs\n", "", "workers", "MB",
              "x ddprun", "processes");
  for (const int workers : {8, 64}) {
    double ddprun_megabytes = 0;
    for (const auto& side : all) {
      const double megabytes = print_memory(side, workers, ddprun_megabytes);
      if (ddprun_megabytes == 0) ddprun_megabytes = megabytes;
    }
  }

  int hung = 0;
  double longest = 0;
  for (int i = 0; i < 100; ++i) {
    const auto cost = time_launcher({"timeout", "-k", "1", "60", ddprun, "--nproc-per-node=64", "/bin/true"});
    hung += cost.exit_code != 0;
    longest = std::max(longest, cost.wall_ms);
  }
  std::printf("\n100 runs of ddprun with 64 workers that exit at once: %d hung or failed, the longest took %.0f ms\n",
              hung, longest);
  return hung == 0 ? 0 : 1;
}
