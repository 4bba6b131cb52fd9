// How long it takes from the abort of a group of the backend nccl, with collectives under way, to the first all-reduce
// that the next group has finished, in the same processes: two ranks on one GPU.
//
//   gpu_rebuild_benchmark [--rounds=10] [--elements=1000000] [--json=FILE]
//
// The time is that of rank 0, which aborts. It starts ddprun by itself.
#include <cuda_runtime_api.h>
#include <ddp/ddp.hpp>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/common/measure.hpp"
#include "benchmarks/gpu/ddprun_job.hpp"
#include "benchmarks/gpu/figures.hpp"
#include "benchmarks/gpu/shared_gpu.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using namespace ddp::benchmarks;

constexpr int kCallsBefore = 10;

double ms_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

struct Times {
  std::vector<double> until_new, until_reduced;  // ms from the abort on
};

// Ends with collectives under way. The other rank's abort may come as soon as it has left the barrier.
void reduce(ddp::ProcessGroup& group, ddp::MemoryRange values) {
  for (int i = 0; i < kCallsBefore; ++i) group.all_reduce(values);
  group.barrier();
  for (int i = 0; i < kCallsBefore; ++i) group.all_reduce(values);
}

void reduce_until_aborted(ddp::ProcessGroup& group, ddp::MemoryRange values) {
  try {
    reduce(group, values);
    for (;;) {
      group.all_reduce(values);
      check(cudaDeviceSynchronize());
    }
  } catch (const ddp::Error&) {
  }
}

Times measure(std::size_t rounds, std::size_t elements) {
  std::optional<ddp::ProcessGroup> group = join();
  void* memory = nullptr;
  check(cudaMalloc(&memory, elements * sizeof(float)));
  check(cudaMemset(memory, 0, elements * sizeof(float)));
  const ddp::MemoryRange values{memory, elements, ddp::DataType::float32, group->device()};
  Times times;
  for (std::size_t round = 0; round <= rounds; ++round) {  // the first one warms up
    const bool aborts = group->rank() == 0;
    if (aborts) reduce(*group, values);
    if (!aborts) reduce_until_aborted(*group, values);
    const auto aborted = Clock::now();
    if (aborts) group->abort("the benchmark begins anew");
    group.reset();
    group = join();
    const auto is_new = Clock::now();
    group->all_reduce(values);
    check(cudaDeviceSynchronize());
    if (round == 0) continue;
    times.until_new.push_back(ms_between(aborted, is_new));
    times.until_reduced.push_back(ms_between(aborted, Clock::now()));
  }
  group->barrier();
  check(cudaFree(memory));
  return times;
}

int be_worker(const Numbers& numbers) {
  const Times times = measure(numbers["rounds"], numbers["elements"]);
  if (std::string(std::getenv("RANK")) != "0") return 0;
  Figures figures("rebuild");
  const auto [least, most] = std::minmax_element(times.until_reduced.begin(), times.until_reduced.end());
  figures.add("abort to the next group, 2 ranks on one GPU, median", median(times.until_new), "ms", 1);
  figures.add("abort to the next group's first finished all-reduce, median", median(times.until_reduced), "ms", 1);
  figures.add("the same, least", *least, "ms", 1);
  figures.add("the same, most", *most, "ms", 1);
  figures.write(numbers.json());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Numbers numbers(argc, argv, {{"rounds", 10, 1'000}, {"elements", 1'000'000, 100'000'000}});
  try {
    if (is_worker()) return be_worker(numbers);
    const auto words = job_of_two({}, {argv + 1, argv + argc});
    ::execv(words[0].c_str(), arguments_of(words).data());
    throw std::runtime_error("can't run " + words[0]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
