// How long training stands still for a checkpoint, what it loses while the checkpoint is written, and how long loading
// takes, each beside its limit: a plain copy of the same bytes, and the CPU time of the writer. CPU times hardly change
// if other work is running.
//
//   ddprun --standalone --nproc-per-node=2 checkpoint_benchmark [directory] [MB per rank] [rounds]
// PyTorch's asynchronous checkpoints, with the same bytes and the same copy beside them:
//   ddprun --standalone --nproc-per-node=2 python3 benchmarks/checkpoint/torch_checkpoint.py [directory] [MB] [rounds]
#include <ddp/ddp.hpp>

#include <sys/resource.h>
#include <sys/time.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/common/measure.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using ddp::benchmarks::median;

double seconds_of(const std::function<void()>& call) {
  const auto begin = Clock::now();
  call();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double cpu_seconds(int of) {
  rusage usage{};
  ::getrusage(of, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Work that stays in the cache, in place of a training step.
void compute(std::int64_t steps) {
  volatile double start = 2;  // else the compiler knows the result
  double value = start;
  for (std::int64_t i = 0; i < steps * 20'000; ++i) value = value * 0.999999 + 1e-6;
  volatile double result = value;  // else the compiler leaves the loop out
  static_cast<void>(result);
}

struct Copy {
  double seconds, cpu_seconds;
};

struct Bench {
  ddp::ProcessGroup world;
  std::filesystem::path directory;
  std::size_t bytes;
  int rounds;
  std::vector<float> values = std::vector<float>(bytes / sizeof(float), 1.0f);

  void print(const char* what, double seconds, double limit, const char* of) {
    if (world.rank() != 0) return;
    if (limit > 0) {
      std::printf("| %s | %.1f ms | %.2f of %s |\n", what, seconds * 1e3, seconds / limit, of);
    } else {
      std::printf("| %s | %.1f ms | |\n", what, seconds * 1e3);
    }
  }

  void add_to(ddp::Checkpointer& checkpoints) {
    checkpoints.add_own([this] {
      return std::vector<ddp::Parameter>{{"values", {static_cast<std::int64_t>(values.size())}, values}};
    });
  }

  // The median over the rounds of the time on the slowest rank.
  double slowest(const std::vector<double>& times) { return ddp::all_reduce(world, median(times), ddp::ReduceOp::max); }

  // Over all ranks and rounds. Not a median, because the writer's CPU time has two modes where new pages of the page
  // cache are memory that a virtual machine has yet to get from its host. Not the slowest rank, because the kernel may
  // run the writers of two ranks beside the same rank.
  double mean(double sum_of_rounds) {
    return ddp::all_reduce(world, sum_of_rounds, ddp::ReduceOp::sum) / (rounds * world.size());
  }

  Copy copies() {
    std::vector<float> target(values.size(), 2.0f);
    std::vector<double> times, cpu_times;
    for (int round = 0; round < rounds; ++round) {
      world.barrier();
      const double before = cpu_seconds(RUSAGE_THREAD);
      times.push_back(seconds_of([&] { std::memcpy(target.data(), values.data(), bytes); }));
      cpu_times.push_back(cpu_seconds(RUSAGE_THREAD) - before);
    }
    return {slowest(times), slowest(cpu_times)};
  }

  void saves(const Copy& copy) {
    ddp::CheckpointerOptions options;
    options.directory = directory;
    ddp::Checkpointer checkpoints(world, options);
    add_to(checkpoints);
    std::uint64_t step = 0;
    const std::int64_t work = 10'000;  // takes longer than writing
    std::vector<double> stalls, stall_cpus, wholes;
    double lost = 0, writer = 0;  // of all rounds
    for (int round = 0; round <= rounds; ++round) {
      world.barrier();
      const double alone_now = seconds_of([&] { compute(work); });
      world.barrier();
      const double all_before = cpu_seconds(RUSAGE_SELF), own_before = cpu_seconds(RUSAGE_THREAD);
      const auto begin = Clock::now();
      const double stall = seconds_of([&] { checkpoints.save(++step); });
      const double stall_cpu = cpu_seconds(RUSAGE_THREAD) - own_before;
      const double beside_now = seconds_of([&] { compute(work); });
      checkpoints.wait();
      const double whole = std::chrono::duration<double>(Clock::now() - begin).count();
      const double own = cpu_seconds(RUSAGE_THREAD) - own_before;
      if (round == 0) {  // its buffer is new: each of its pages is a fault
        print("save() stands still, the first time", slowest({stall}), copy.seconds, "a copy");
        continue;
      }
      stalls.push_back(stall), stall_cpus.push_back(stall_cpu), wholes.push_back(whole);
      lost += beside_now - alone_now;
      writer += cpu_seconds(RUSAGE_SELF) - all_before - own;
    }
    print("save() stands still", slowest(stalls), copy.seconds, "a copy");
    print("CPU time of save()", slowest(stall_cpus), copy.cpu_seconds, "a copy's CPU time");
    print("until it is complete on disk", slowest(wholes), 0, "");
    print("CPU time of the writer, the mean", mean(writer), copy.cpu_seconds, "a copy's CPU time");
    print("training loses meanwhile, the mean", mean(lost), mean(writer), "the writer's CPU time");
  }

  void loads(double copy) {
    std::vector<double> times;
    ddp::CheckpointerOptions options;
    options.directory = directory;
    for (int round = 0; round < rounds; ++round) {
      ddp::Checkpointer checkpoints(world, options);
      add_to(checkpoints);
      world.barrier();
      times.push_back(seconds_of([&] { static_cast<void>(checkpoints.load()); }));
    }
    print("load() from disk, the first time", slowest({times[0]}), copy, "a copy");
    print("load() from disk, in the page cache", slowest(times), copy, "a copy");
  }

  void recovers(double copy) {
    std::vector<double> times;
    for (int round = 0; round < rounds; ++round) {
      auto memory = std::make_unique<ddp::CheckpointMemory>();
      ddp::CheckpointerOptions options;
      options.memory = memory.get();
      {
        ddp::Checkpointer checkpoints(world, options);
        add_to(checkpoints);
        checkpoints.save(1);
        checkpoints.wait();
      }
      if (world.rank() == 0) memory = std::make_unique<ddp::CheckpointMemory>();  // a new process has nothing
      options.memory = memory.get();
      ddp::Checkpointer checkpoints(world, options);
      add_to(checkpoints);
      world.barrier();
      times.push_back(seconds_of([&] { static_cast<void>(checkpoints.load()); }));
    }
    print("load() from the memory of a neighbour", slowest(times), copy, "a copy");
  }
};

}  // namespace

int main(int argument_count, char** arguments) {
  const std::filesystem::path parent = argument_count > 1 ? arguments[1] : std::filesystem::temp_directory_path();
  const std::size_t megabytes = argument_count > 2 ? std::strtoul(arguments[2], nullptr, 10) : 100;
  const int rounds = argument_count > 3 ? std::atoi(arguments[3]) : 9;
  ddp::ProcessGroup world = ddp::init_process_group();
  const auto directory = parent / ("ddp_checkpoint_benchmark_" + ddp::to_string(world.round()));
  Bench bench{world, directory, megabytes * 1'000'000, rounds};
  if (world.rank() == 0) {
    std::printf("%d ranks, %zu MB each, median of %d rounds, in %s\n\n| what | time | |\n| --- | --- | --- |\n",
                world.size(), megabytes, rounds, parent.c_str());
  }
  const Copy copy = bench.copies();
  bench.print("a plain copy", copy.seconds, 0, "");
  bench.saves(copy);
  bench.loads(copy.seconds);
  bench.recovers(copy.seconds);
  world.barrier();
  if (world.rank() == 0) std::filesystem::remove_all(directory);
}
