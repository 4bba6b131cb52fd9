// What a job costs on a real Slurm, whose daemons this starts on this machine (tests/slurm/cluster.hpp).
//
// Start: from srun to the first line of every worker, as srun prints it, of a step on two nodes of an allocation that
// is there already. The workers are started by srun alone, as tasks of its own, by ddprun, and by torchrun,
// where a Python with torch is found: DDP_TEST_PYTHON, else the one in build/interop/venv (`./test.sh
// --interop` makes it). Sides take turns within each round; printed are medians, and the medians of the ratios of the
// same round.
//
// Requeue: a job of two nodes is warned as near its limit of time, stops with a checkpoint and goes back into the
// queue, by a batch script of the form of slurm/requeue.sbatch. Its workers are this program again.
//
//   slurm_benchmark [rounds]      default 9
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <ddp/ddp.hpp>

#include "benchmarks/common/measure.hpp"
#include "tests/integration/job.hpp"
#include "tests/slurm/cluster.hpp"
#include "tests/text.hpp"

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC, the same in all processes
using Nanoseconds = long long;
using Words = std::vector<std::string>;
using ddp::benchmarks::median;
using ddp::test::Cluster;

constexpr int kNodes = 2;
constexpr const char* kTwoNodes = "--nodes=2";
constexpr int kTorchrunRounds = 3;                // seconds each
constexpr std::size_t kStateFloats = 16'777'216;  // 64 MiB, what a checkpoint holds
constexpr std::size_t kGradientFloats = 262'144;  // 1 MiB, what a step reduces
constexpr const char* kStamps = "stamps";         // a file, of lines such as "saved 1234", in nanoseconds

Nanoseconds now() { return Clock::now().time_since_epoch().count(); }

// One write, so that lines of several processes do not mix.
void stamp(const std::string& name) {
  const std::string line = name + " " + std::to_string(now()) + "\n";
  const int file = ::open(kStamps, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (::write(file, line.data(), line.size()) != static_cast<ssize_t>(line.size())) throw std::runtime_error(kStamps);
  ::close(file);
}

// Trains, if in name only, until it is told to stop; rank 0 then writes the state.
void be_worker() {
  auto world = ddp::init_process_group();
  ddp::CheckpointDirectory checkpoints("checkpoints");
  std::vector<float> state(kStateFloats), gradient(kGradientFloats);
  std::vector<std::int64_t> step{0};
  if (world.rank() == 0) {
    if (const auto file = checkpoints.newest()) {
      file->read("step", {1}, step);
      file->read("state", {kStateFloats}, state);
    }
  }
  world.broadcast(step, 0);
  world.broadcast(state, 0);
  for (bool is_first = true; !world.should_stop(); is_first = false) {
    world.all_reduce(gradient, ddp::ReduceOp::average);
    ++step[0];
    if (is_first && world.rank() == 0) stamp("first_step");
  }
  if (world.rank() == 0) {
    checkpoints.save(world.round(), static_cast<std::uint64_t>(step[0]),
                     {{"step", {1}, step}, {"state", {kStateFloats}, state}});
    stamp("saved");
  }
  world.barrier();  // no rank ends before rank 0 has saved
}

// Of this name, the first first.
std::vector<Nanoseconds> stamps(const Cluster& cluster, const std::string& name) {
  std::vector<Nanoseconds> found;
  std::istringstream lines(ddp::test::contents_of(cluster.folder() / kStamps));
  std::string word;
  for (Nanoseconds time = 0; lines >> word >> time;) {
    if (word == name) found.push_back(time);
  }
  return found;
}

// The time of the n-th stamp of this name, once it is there.
Nanoseconds wait_for(const Cluster& cluster, const std::string& job, const std::string& name, int index) {
  const auto count = static_cast<std::size_t>(index) + 1;
  const auto is_there = [&] { return stamps(cluster, name).size() >= count; };
  if (!ddp::test::becomes_true(is_there, std::chrono::seconds(60))) {
    throw std::runtime_error("no " + name + " within 60 s; the job says:\n" + cluster.output(job));
  }
  return stamps(cluster, name)[count - 1];
}

double ms_between(Nanoseconds begin, Nanoseconds end) { return static_cast<double>(end - begin) / 1e6; }

struct Side {
  std::string name;
  Words srun;     // options
  Words command;  // before the worker's
  int rounds;
};

// From just before srun to the last worker's line on its output.
double time_start(Cluster& cluster, const std::string& job, const Side& side, int workers) {
  Words words{"srun", "--jobid=" + job, "--overlap", "--overcommit", kTwoNodes};
  words.insert(words.end(), side.srun.begin(), side.srun.end());
  words.insert(words.end(), side.command.begin(), side.command.end());
  words.insert(words.end(), {"/bin/echo", "here I am"});
  const auto begin = now();
  auto srun = cluster.run(words);
  const bool are_here = srun.prints("here I am", workers);
  const double taken = ms_between(begin, now());
  if (!are_here || srun.wait() != 0) throw std::runtime_error(side.name + ": " + srun.out() + srun.err());
  return taken;
}

// Its path, or nothing.
std::string find_python_with_torch() {
  const char* given = std::getenv("DDP_TEST_PYTHON");
  const fs::path venv = fs::path(ddp::test::built("ddprun")).parent_path() / "../../interop/venv/bin/python";
  const fs::path python = given != nullptr ? fs::path(given) : venv.lexically_normal();
  return fs::exists(python.parent_path() / "torchrun") ? python.string() : "";
}

std::vector<Side> sides(int workers_per_node, int rounds) {
  const std::string count = std::to_string(workers_per_node);
  const std::string one = "--ntasks-per-node=1";
  std::vector<Side> all{{"srun alone", {"--ntasks-per-node=" + count}, {}, rounds},
                        {"ddprun", {one}, {ddp::test::built("ddprun"), "--nproc-per-node=" + count}, rounds}};
  const std::string python = find_python_with_torch();
  if (!python.empty()) {
    all.push_back(
        {"torchrun",
         {one},
         {python, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=" + count, "--rdzv-backend=c10d",
          "--rdzv-id=start", "--rdzv-endpoint=" + ddp::test::Hosts::name(0) + ":29500", "--no-python"},
         std::min(rounds, kTorchrunRounds)});
  }
  return all;
}

void time_starts(int rounds) {
  Cluster cluster({.nodes = kNodes, .cpus = 8});
  const auto job = cluster.submit({kTwoNodes, "--exclusive", "--wrap=echo up; exec tail -f /dev/null"});
  if (!cluster.prints(job, "up")) throw std::runtime_error("no allocation");
  if (find_python_with_torch().empty()) std::printf("no Python with torch: `./test.sh --interop` installs it\n");
  std::printf("%-44s %-12s %10s %10s %10s   median of %d rounds\n", "from srun to the first line of every worker", "",
              "wall ms", "x srun", "x ddprun", rounds);
  for (const int workers : {1, 8}) {
    const auto all = sides(workers, rounds);
    std::vector<std::vector<double>> ms(all.size()), to_srun(all.size()), to_ddprun(all.size());
    for (int round = -1; round < rounds; ++round) {  // the first one warms up
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (round >= all[i].rounds) continue;
        const double taken = time_start(cluster, job, all[i], kNodes * workers);
        if (round < 0) continue;
        ms[i].push_back(taken);
        to_srun[i].push_back(taken / ms[0].back());
        if (i > 0) to_ddprun[i].push_back(taken / ms[1].back());
      }
    }
    const std::string what = "2 nodes of " + std::to_string(workers) + (workers == 1 ? " worker" : " workers");
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::printf("%-44s %-12s %10.1f %10.2f", what.c_str(), all[i].name.c_str(), median(ms[i]), median(to_srun[i]));
      i > 0 ? std::printf(" %10.2f\n", median(to_ddprun[i])) : std::printf("\n");
    }
  }
}

// A batch script as slurm/requeue.sbatch, which says what happens when.
void write_script(const fs::path& path, const std::string& own) {
  std::ofstream(path) << "#!/bin/bash\n"
                      << own << " --stamp run\n"
                      << "srun ddprun --nproc-per-node=2 " << own << " --worker &\n"
                      << "srun=$!\n"
                         "trap 'kill -USR1 \"$srun\"' USR1\n"
                         "while kill -0 \"$srun\" 2>/dev/null; do wait \"$srun\"; done\n"
                         "wait \"$srun\"\n"
                         "code=$?\n"
                      << own << " --stamp ended_with_$code\n"
                      << "[ $code = 75 ] && scontrol requeue \"$SLURM_JOB_ID\"\n";
}

void time_requeues(int rounds) {
  Cluster cluster({.nodes = kNodes});
  write_script(cluster.folder() / "requeue.sbatch", ddp::test::built("slurm_benchmark"));
  const auto job = cluster.submit({kTwoNodes, "--ntasks-per-node=1", "--requeue", "requeue.sbatch"});
  std::vector<double> saved, ended, restarted;
  for (int round = 0; round <= rounds; ++round) {
    const auto first_step = wait_for(cluster, job, "first_step", round);
    if (round > 0) restarted.push_back(ms_between(wait_for(cluster, job, "run", round), first_step));
    if (round == rounds) break;
    const auto begin = now();
    cluster.ask({"scancel", "--batch", "--signal=USR1", job});
    saved.push_back(ms_between(begin, wait_for(cluster, job, "saved", round)));
    ended.push_back(ms_between(begin, wait_for(cluster, job, "ended_with_75", round)));
  }
  cluster.ask({"scancel", job});
  std::printf("\n%-60s %10s   median of %d rounds\n", "requeue of 2 nodes of 2 workers with 64 MiB of state", "ms",
              rounds);
  std::printf("%-60s %10.0f\n", "from scancel --batch --signal=USR1 to the checkpoint on disk", median(saved));
  std::printf("%-60s %10.0f\n", "from the same to the end of srun with 75", median(ended));
  std::printf("%-60s %10.0f\n", "from the batch script's next start to the first step", median(restarted));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string word = argc > 1 ? argv[1] : "9";
  try {
    if (word == "--worker") return be_worker(), 0;
    if (word == "--stamp" && argc == 3) return stamp(argv[2]), 0;
    const int rounds = std::atoi(word.c_str());
    if (rounds < 1 || argc > 2) {
      std::fprintf(stderr, "error: '%s' is no number of rounds\nwhere: the first argument\ntry:   slurm_benchmark 9\n",
                   word.c_str());
      return 2;
    }
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    time_starts(rounds);
    time_requeues(rounds);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
