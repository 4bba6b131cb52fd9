// What small calls cost: a barrier, an all-reduce of 8 bytes beside the same NCCL call without libddp, and what a
// bucket of DistributedDataParallel takes of the host's time. One rank by itself, then two ranks that share one GPU.
//
//   gpu_latency_benchmark [--calls=500] [--rounds=9] [--buckets=64] [--json=FILE]
//
// The two sides take turns within one run; a ratio is the median of those of the pairs. With one rank NCCL has nothing
// to do, so its figures are what the calls themselves cost. Two ranks on one GPU take turns there (the device gives
// each process slices of a few milliseconds), so their times are no measure of two GPUs. It starts ddprun by itself.
#include <cuda_runtime_api.h>
#include <ddp/ddp.hpp>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/common/measure.hpp"
#include "benchmarks/gpu/ddprun_job.hpp"
#include "benchmarks/gpu/figures.hpp"
#include "benchmarks/gpu/shared_gpu.hpp"
#include "worker_runtime/backends/nccl/nccl_library.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using namespace ddp::benchmarks;
namespace abi = ddp::nccl_backend::abi;

constexpr std::size_t kBucketElements = 1024;

void check_nccl(abi::Result result) {
  if (result != abi::Result::success)
    throw std::runtime_error("NCCL: error " + std::to_string(static_cast<int>(result)));
}

// A communicator of the same ranks, as a program without libddp makes it.
abi::Comm bare_communicator(ddp::ProcessGroup& world) {
  const auto& nccl = ddp::nccl_backend::NcclLibrary::of_process();
  abi::UniqueId id{};
  if (world.rank() == 0) check_nccl(nccl->get_unique_id(&id));
  const Memory on_device(sizeof id);
  check(cudaMemcpy(on_device.data(), &id, sizeof id, cudaMemcpyHostToDevice));
  world.broadcast(ddp::MemoryRange{on_device.data(), sizeof id, ddp::DataType::uint8, world.device()}, 0);
  check(cudaMemcpy(&id, on_device.data(), sizeof id, cudaMemcpyDeviceToHost));
  abi::Comm comm = nullptr;
  abi::Config config;
  check_nccl(nccl->comm_init_rank_config(&comm, world.size(), id, world.rank(), &config));
  return comm;
}

// us of a call.
template <class Call>
double time(std::size_t calls, const Call& call) {
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < calls; ++i) call();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / static_cast<double>(calls);
}

struct Pairs {
  std::vector<double> bare, ours, ratios;
  void add(double of_bare, double of_ours) {
    bare.push_back(of_bare), ours.push_back(of_ours), ratios.push_back(of_ours / of_bare);
  }
};

template <class Bare, class Ours>
Pairs compare(std::size_t rounds, const Bare& bare, const Ours& ours) {
  bare(), ours();
  Pairs pairs;
  for (std::size_t round = 0; round < rounds; ++round) {
    double of_bare = 0;
    if (round % 2 == 0) of_bare = bare();
    const double of_ours = ours();
    if (round % 2 != 0) of_bare = bare();
    pairs.add(of_bare, of_ours);
  }
  return pairs;
}

void add(Figures& figures, const std::string& what, const std::string& ranks, const Pairs& pairs) {
  figures.add(what + ", NCCL alone, " + ranks, median(pairs.bare), "us", 2);
  figures.add("the same, libddp", median(pairs.ours), "us", 2);
  figures.add("the same, libddp by NCCL alone", median(pairs.ratios), "", 2);
}

// Host time of a bucket in a step whose gradients are ready at once, in us.
double time_of_bucket(ddp::ProcessGroup& world, cudaStream_t stream, std::size_t buckets, std::size_t steps) {
  const Memory values(buckets * kBucketElements * sizeof(float));
  std::vector<ddp::Parameter> parameters;
  for (std::size_t b = 0; b < buckets; ++b) {
    parameters.push_back({"p" + std::to_string(b),
                          {static_cast<std::int64_t>(kBucketElements)},
                          {static_cast<float*>(values.data()) + b * kBucketElements, kBucketElements,
                           ddp::DataType::float32, world.device()}});
  }
  ddp::DistributedDataParallelOptions options;
  options.first_bucket_cap_bytes = options.bucket_cap_bytes = kBucketElements * sizeof(float);
  options.zero_gradients = false;
  options.collective.stream = stream;
  ddp::DistributedDataParallel model(world, parameters, options);
  if (model.bucket_count() != buckets) throw std::runtime_error("the buckets are not one for each parameter");
  std::vector<double> times;
  for (std::size_t i = 0; i < steps; ++i) {
    const auto begin = Clock::now();
    auto step = model.begin_step();
    for (std::size_t b = buckets; b-- > 0;) step.ready(b);
    step.finish();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count() /
                    static_cast<double>(buckets));
    check(cudaStreamSynchronize(stream));
  }
  model.check();
  return median(times);
}

void measure(Figures& figures, const Numbers& numbers) {
  auto world = join();
  const auto& nccl = ddp::nccl_backend::NcclLibrary::of_process();
  const abi::Comm comm = bare_communicator(world);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const Memory value(sizeof(double));
  const ddp::MemoryRange range{value.data(), 1, ddp::DataType::float64, world.device()};
  const ddp::CollectiveOptions on_stream{.timeout = {}, .stream = stream};
  const auto bare = [&] {
    check_nccl(nccl->all_reduce(value.data(), value.data(), 1, abi::DataType::float64, abi::RedOp::sum, comm, stream));
  };
  const auto ours = [&] { world.all_reduce(range, ddp::ReduceOp::sum, on_stream); };
  const auto to_the_end = [&](const auto& call) {
    return [&] {
      world.barrier();
      return time(numbers["calls"], [&] { call(), check(cudaStreamSynchronize(stream)); });
    };
  };
  const auto on_the_host = [&](const auto& call) {
    return [&] {
      world.barrier();
      const double took = time(numbers["calls"], call);
      check(cudaStreamSynchronize(stream));
      return took;
    };
  };
  const std::string ranks = std::to_string(world.size()) + (world.size() == 1 ? " rank" : " ranks on one GPU");
  const std::size_t rounds = numbers["rounds"];
  const Pairs whole = compare(rounds, to_the_end(bare), to_the_end(ours));
  const Pairs host = compare(rounds, on_the_host(bare), on_the_host(ours));
  std::vector<double> barriers;
  for (std::size_t round = 0; round < rounds; ++round)
    barriers.push_back(time(numbers["calls"], [&] { world.barrier(); }));
  const double bucket = time_of_bucket(world, stream, numbers["buckets"], numbers["calls"]);
  check_nccl(nccl->comm_destroy(comm));
  world.barrier();
  if (world.rank() != 0) return;
  add(figures, "an all-reduce of 8 bytes to its end", ranks, whole);
  add(figures, "an all-reduce of 8 bytes, host time", ranks, host);
  figures.add("a barrier, " + ranks, median(barriers), "us", 2);
  figures.add("a bucket's host time in a step of " + std::to_string(numbers["buckets"]) + " buckets, " + ranks, bucket,
              "us", 2);
}

int be_worker(const Numbers& numbers) {
  Figures figures("latency_of_two");
  measure(figures, numbers);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Numbers numbers(argc, argv, {{"calls", 500, 100'000}, {"rounds", 9, 1'000}, {"buckets", 64, 1'000}});
  try {
    if (is_worker()) return be_worker(numbers);
    Figures figures("latency");
    measure(figures, numbers);
    figures.write(numbers.json());
    std::fflush(stdout);
    ::unsetenv("NCCL_HOSTID");  // that of this process, which each rank has to have of its own
    const auto words = job_of_two({}, {"--calls=50", "--rounds=5", "--buckets=8"});
    ::execv(words[0].c_str(), arguments_of(words).data());
    throw std::runtime_error("can't run " + words[0]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
