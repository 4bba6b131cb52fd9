#include "benchmarks/ddp_step/overhead.hpp"

#include <ddp/bootstrap.hpp>
#include <ddp/ddp.hpp>

#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/common/sides/side_processes.hpp"

namespace ddp::benchmarks {

namespace {

constexpr std::size_t kElements = 64;  // of a parameter
constexpr int kSteps = 1000, kBatches = 20;

struct Sizes {
  std::size_t parameters, buckets;
};

class Steps {
 public:
  explicit Steps(const Sizes& sizes)
      : values_(sizes.parameters * kElements),
        engine_(init_process_group(BootstrapOptions{}, {}), parameters_of(values_), options_of(sizes)) {
    if (engine_.bucket_count() != sizes.buckets) throw std::logic_error("another number of buckets");
  }

  void make(int steps) {
    for (int i = 0; i < steps; ++i) {
      auto step = engine_.begin_step();
      for (std::size_t p = engine_.parameter_count(); p-- > 0;) step.ready(p);
      step.finish();
    }
  }

 private:
  static std::vector<Parameter> parameters_of(std::vector<float>& values) {
    std::vector<Parameter> out;
    for (std::size_t first = 0; first < values.size(); first += kElements) {
      out.push_back({std::to_string(first), {kElements}, {values.data() + first, kElements}});
    }
    return out;
  }

  static DistributedDataParallelOptions options_of(const Sizes& sizes) {
    DistributedDataParallelOptions out;
    out.zero_gradients = false;
    out.bucket_cap_bytes = sizes.parameters / sizes.buckets * kElements * sizeof(float);
    out.first_bucket_cap_bytes = out.bucket_cap_bytes;
    return out;
  }

  std::vector<float> values_;
  DistributedDataParallel engine_;
};

// Instructions of this process in user space, also of the threads that it starts from now on.
class InstructionCounter {
 public:
  InstructionCounter() {
    perf_event_attr wanted{};
    wanted.type = PERF_TYPE_HARDWARE;
    wanted.size = sizeof wanted;
    wanted.config = PERF_COUNT_HW_INSTRUCTIONS;
    wanted.exclude_kernel = wanted.exclude_hv = wanted.inherit = 1;
    descriptor_ = static_cast<int>(::syscall(SYS_perf_event_open, &wanted, 0, -1, -1, PERF_FLAG_FD_CLOEXEC));
  }
  ~InstructionCounter() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  InstructionCounter(const InstructionCounter&) = delete;
  InstructionCounter& operator=(const InstructionCounter&) = delete;

  // Empty if the machine has no such counter, or one that stays 0, as some virtual machines have.
  std::optional<double> count() const {
    std::uint64_t count = 0;
    if (descriptor_ < 0 || ::read(descriptor_, &count, sizeof count) != sizeof count || count == 0) return std::nullopt;
    return static_cast<double>(count);
  }

 private:
  int descriptor_ = -1;
};

std::string callgrind_command(const Sizes& sizes, int steps) {
  return "valgrind --tool=callgrind --callgrind-out-file=/dev/null '" + own_program() + "' --steps " +
         std::to_string(sizes.parameters) + " " + std::to_string(sizes.buckets) + " " + std::to_string(steps) + " 2>&1";
}

// Of the whole process.
double callgrind_count(const Sizes& sizes, int steps) {
  const std::string command = callgrind_command(sizes, steps);
  std::FILE* const output = ::popen(command.c_str(), "r");
  double count = 0;
  char line[512];
  while (output != nullptr && std::fgets(line, sizeof line, output) != nullptr) {
    const std::string text = line;
    const auto found = text.find("Collected : ");
    if (found != std::string::npos) count = std::atof(text.c_str() + found + 12);
  }
  if (output == nullptr || ::pclose(output) != 0 || count <= 0) throw std::runtime_error("this failed: " + command);
  return count;
}

// Instructions of a step.
double instructions(const Sizes& sizes, bool has_counter) {
  if (!has_counter) return (callgrind_count(sizes, 2 * kSteps) - callgrind_count(sizes, kSteps)) / kSteps;
  const InstructionCounter counter;
  Steps steps(sizes);
  steps.make(kSteps);
  const double before = counter.count().value();
  steps.make(kSteps);
  return (counter.count().value() - before) / kSteps;
}

// Nanoseconds of a step: the least of several batches, because other work on the machine only adds.
double nanoseconds(const Sizes& sizes) {
  using Clock = std::chrono::steady_clock;
  Steps steps(sizes);
  auto least = Clock::duration::max();
  for (int batch = 0; batch < kBatches; ++batch) {
    const auto begin = Clock::now();
    steps.make(kSteps);
    least = std::min(least, Clock::now() - begin);
  }
  return std::chrono::duration<double, std::nano>(least).count() / kSteps;
}

// step + parameters * parameter + buckets * bucket is what a step costs.
struct Costs {
  double step, parameter, bucket;
};

template <class Measure>
Costs solve(const Measure& measure) {
  const Sizes few{64, 1}, more_parameters{256, 1}, more_buckets{256, 64};
  const double base = measure(few), parameters = measure(more_parameters), buckets = measure(more_buckets);
  const double parameter = (parameters - base) / static_cast<double>(more_parameters.parameters - few.parameters);
  const double bucket = (buckets - parameters) / static_cast<double>(more_buckets.buckets - more_parameters.buckets);
  return {base - static_cast<double>(few.parameters) * parameter - bucket, parameter, bucket};
}

}  // namespace

int print_overhead() {
  const bool has_counter = InstructionCounter().count().has_value();
  if (!has_counter && found_on_path("valgrind").empty()) {
    const Sizes example{256, 64};
    std::fprintf(
        stderr,
        "error: can't count instructions: no counter by perf_event_open, and no valgrind on PATH\n"
        "where: ddp_step_benchmark --overhead\n"
        "try:   it again with valgrind on PATH. It compares two counts of `Collected` of\n       %s\n       %s\n",
        callgrind_command(example, kSteps).c_str(), callgrind_command(example, 2 * kSteps).c_str());
    return 1;
  }
  const Costs counted = solve([&](const Sizes& sizes) { return instructions(sizes, has_counter); });
  const Costs timed = solve(nanoseconds);
  std::printf("Instructions by %s.\n\n| engine, one rank | instructions | time |\n| --- | --- | --- |\n",
              has_counter ? "the processor's counter" : "callgrind");
  std::printf("| each step | %.0f | %.0f ns |\n", counted.step, timed.step);
  std::printf("| each parameter | %.1f | %.2f ns |\n", counted.parameter, timed.parameter);
  std::printf("| each bucket | %.0f | %.0f ns |\n", counted.bucket, timed.bucket);
  return 0;
}

int make_steps(const char* parameters, const char* buckets, const char* steps) {
  Steps(Sizes{std::strtoul(parameters, nullptr, 10), std::strtoul(buckets, nullptr, 10)}).make(std::atoi(steps));
  return 0;
}

}  // namespace ddp::benchmarks
