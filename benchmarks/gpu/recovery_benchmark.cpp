// kill -9 of one of two ranks on one GPU, under ddprun and run_elastic: how soon the survivor finishes its next step,
// counted from the start of the replacement's process, and whether it kept its process and what it has on the GPU.
//
//   gpu_recovery_benchmark [--kills=5] [--elements=4000000] [--json=FILE]
//
// A step is an all-reduce of the parameters and a commit; it is finished when the device has done it. The replacement's
// start is its first statement; what it does from there on (it loads CUDA, makes a context, meets the survivor) is in
// the time.
#include <cuda_runtime_api.h>
#include <ddp/elastic.hpp>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/common/measure.hpp"
#include "benchmarks/gpu/ddprun_job.hpp"
#include "benchmarks/gpu/figures.hpp"
#include "benchmarks/gpu/shared_gpu.hpp"
#include "tests/nccl/place.hpp"

namespace {

using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC, the same in all processes
using namespace ddp::benchmarks;

constexpr std::chrono::seconds kPatience{60};
constexpr int kStepsBeforeAKill = 5;
constexpr float kMark = 7;  // in memory of the device that only this process has

long long now() { return Clock::now().time_since_epoch().count(); }

// In one write, so that lines of several workers do not mix.
void say(const std::string& line) { static_cast<void>(!::write(STDOUT_FILENO, (line + "\n").data(), line.size() + 1)); }

// --- a worker ---

class Worker {
 public:
  explicit Worker(std::size_t elements) : elements_(elements) {
    const auto place = ddp::nccl_test::take_place();
    options_.group.backend = "nccl";
    options_.group.timeout = std::chrono::minutes(1);
    options_.group.device = place.device.value_or(std::atoi(std::getenv("RANK")));
    options_.group.share_device = place.share_device;
    check(cudaSetDevice(*options_.group.device));
    check(cudaMalloc(&parameters_, elements_ * sizeof(float)));
    check(cudaMemset(parameters_, 0, elements_ * sizeof(float)));
    check(cudaMalloc(&mark_, sizeof kMark));
    check(cudaMemcpy(mark_, &kMark, sizeof kMark, cudaMemcpyHostToDevice));
    state_.add({parameters_, elements_, ddp::DataType::float32, {ddp::Device::Kind::cuda, *options_.group.device}});
    state_.add(step_);
  }

  void run() {
    ddp::run_elastic(
        state_, [this](ddp::ProcessGroup world) { train(world); }, options_);
  }

 private:
  // "step TIME PID ROUND MARK"
  [[noreturn]] void train(ddp::ProcessGroup& world) {
    const ddp::MemoryRange parameters{parameters_, elements_, ddp::DataType::float32, world.device()};
    for (;;) {
      world.all_reduce(parameters, ddp::ReduceOp::average);
      ++step_;
      state_.commit();  // waits for the device, and throws where the all-reduce has failed
      float mark = 0;
      check(cudaMemcpy(&mark, mark_, sizeof mark, cudaMemcpyDeviceToHost));
      say("step " + std::to_string(now()) + " " + std::to_string(::getpid()) + " " +
          std::to_string(world.round().number) + " " + (mark == kMark ? "kept" : "lost"));
    }
  }

  std::size_t elements_;
  ddp::ElasticOptions options_;
  ddp::ElasticState state_;
  void* parameters_ = nullptr;
  void* mark_ = nullptr;
  long long step_ = 0;
};

// --- the benchmark ---

struct Line {
  long long time = 0;
  pid_t pid = 0;
  int round = 0;
  bool is_step = false;
  bool is_kept = false;
};

class Recovery {
 public:
  explicit Recovery(const Numbers& numbers)
      : job_(job_of_two({"--max-restarts=" + std::to_string(numbers["kills"] + 1)},
                        {"--elements=" + std::to_string(numbers["elements"])})) {}

  // ms from the kill to the replacement's start, and from there to the survivor's next finished step.
  std::pair<double, double> kill_one() {
    const auto [victim, survivor] = both_after(kStepsBeforeAKill);
    const long long killed = now();
    ::kill(victim, SIGKILL);
    long long started = 0;
    for (;;) {
      const Line line = next();
      if (!line.is_step) started = line.time;
      if (!line.is_step || line.round == round_ || line.pid != survivor) continue;
      if (!line.is_kept) throw std::runtime_error("the survivor has lost what it had on the GPU");
      if (started == 0) throw std::runtime_error("the survivor went on without a replacement");
      round_ = line.round;
      return {static_cast<double>(started - killed) / 1e6, static_cast<double>(line.time - started) / 1e6};
    }
  }

 private:
  Line next() {
    const auto text = job_.line(Clock::now() + kPatience);
    if (!text) throw std::runtime_error("the job has ended");
    Line line;
    char kind[8] = {}, mark[8] = {};
    if (std::sscanf(text->c_str(), "%7s %lld %d %d %7s", kind, &line.time, &line.pid, &line.round, mark) < 3)
      return next();
    line.is_step = std::string(kind) == "step";
    line.is_kept = std::string(mark) == "kept";
    return line;
  }

  // Two processes that have made this many steps in the present round.
  std::pair<pid_t, pid_t> both_after(int steps) {
    std::map<pid_t, int> counts;
    for (;;) {
      const Line line = next();
      if (!line.is_step || line.round < round_) continue;
      if (++counts[line.pid] < steps || counts.size() < 2) continue;
      if (std::all_of(counts.begin(), counts.end(), [&](const auto& one) { return one.second >= steps; })) {
        return {counts.begin()->first, counts.rbegin()->first};
      }
    }
  }

  DdprunJob job_;
  int round_ = 0;
};

void measure(const Numbers& numbers) {
  Recovery recovery(numbers);
  std::vector<double> starts, steps;
  for (std::size_t i = 0; i < numbers["kills"]; ++i) {
    const auto [start, step] = recovery.kill_one();
    starts.push_back(start), steps.push_back(step);
  }
  Figures figures("recovery");
  const auto [least, most] = std::minmax_element(steps.begin(), steps.end());
  figures.add("kill -9 of one of 2 ranks on one GPU, to the replacement's start, median", median(starts), "ms", 1);
  figures.add("from there to the survivor's next finished step, median", median(steps), "ms", 1);
  figures.add("the same, least", *least, "ms", 1);
  figures.add("the same, most", *most, "ms", 1);
  figures.add("survivors that kept process and GPU memory", static_cast<double>(steps.size()),
              "of " + std::to_string(steps.size()), 0);
  figures.write(numbers.json());
}

}  // namespace

int main(int argc, char** argv) {
  const Numbers numbers(argc, argv, {{"kills", 5, 90}, {"elements", 4'000'000, 1'000'000'000}});
  try {
    if (is_worker()) {
      say("start " + std::to_string(now()) + " " + std::to_string(::getpid()));
      Worker(numbers["elements"]).run();
    } else {
      measure(numbers);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
