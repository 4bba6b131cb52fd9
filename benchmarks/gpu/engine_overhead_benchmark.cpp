// What the gradient engine costs on one GPU: a step of the network of examples/train_mlp_cuda with libddp in a group of
// one rank, and the same step without it, whose backward writes into plain buffers.
//
//   gpu_engine_overhead_benchmark [--layers=4] [--width=8192] [--batch-size=512] [--steps=30] [--rounds=15]
//                                 [--json=FILE]
//
// The two sides train the same network and take turns within one run; a round's ratio is that of its pair. A time is
// that of `steps` steps, to the end of the device's work, divided by them. Products are in TF32. A group of one rank
// has nothing to send, so what is left is the engine's own work: its bookkeeping, events, and the flags of unused
// parameters. Then the same with both steps captured into CUDA graphs, where the host has nothing to do in a step but
// one launch.
#include <ddp/ddp.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/common/measure.hpp"
#include "benchmarks/gpu/figures.hpp"
#include "device.hpp"
#include "device_mlp.hpp"
#include "device_spans.hpp"
#include "kernels.hpp"
#include "tests/nccl/place.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using namespace ddp::benchmarks;
using train::DeviceArray;

constexpr float kLearningRate = 1e-4F, kMomentum = 0.9F;
constexpr int kWarmUpSteps = 10;

ddp::ProcessGroup join() {
  const auto place = ddp::nccl_test::take_place();
  ddp::InitOptions options;
  options.backend = "nccl";
  options.device = place.device;
  return ddp::init_process_group(options);
}

// A step as a CUDA graph.
class Graph {
 public:
  template <class Step>
  Graph(cudaStream_t stream, const Step& step) : stream_(stream) {
    train::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a capture");
    step();
    train::check(cudaStreamEndCapture(stream, &graph_), "ending a capture");
    train::check(cudaGraphInstantiate(&executable_, graph_, 0), "making a graph");
  }
  ~Graph() {
    static_cast<void>(cudaGraphExecDestroy(executable_));
    static_cast<void>(cudaGraphDestroy(graph_));
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch() const { train::check(cudaGraphLaunch(executable_, stream_), "launching a graph"); }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

class Sides {
 public:
  Sides(const ddp::ProcessGroup& world, const Numbers& numbers)
      : batch_size_(numbers["batch-size"]),
        mlp_({std::vector<std::size_t>(numbers["layers"] + 1, numbers["width"]), batch_size_}, 0, true, stream_.get(),
             spans_),
        parameters_(mlp_.parameters(world.device().index)),
        features_(batch_size_ * numbers["width"]),
        labels_(batch_size_),
        model_(world, parameters_, engine_options()) {
    train::kernels::fill_uniform(features_.data(), features_.size(), 1, 1, stream_.get());
    train::kernels::fill_labels(labels_.data(), batch_size_, static_cast<int>(numbers["width"]), 2, stream_.get());
    train::check(cudaMemsetAsync(loss_.data(), 0, loss_.bytes(), stream_.get()), "zeroing device memory");
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      buffers_.emplace_back(parameters_[p].values.count);
      plain_.push_back(buffers_.back().data());
      engines_.push_back(model_.gradient<float>(p).data());
    }
  }

  void plain_step() {
    mlp_.forward(features_.data(), labels_.data(), batch_size_, loss_.data());
    mlp_.backward(plain_, [](std::size_t) {});
    mlp_.descend(plain_, kLearningRate, kMomentum);
  }

  void engine_step() {
    auto step = model_.begin_step();
    mlp_.forward(features_.data(), labels_.data(), batch_size_, loss_.data());
    mlp_.backward(engines_, [&](std::size_t parameter) { step.ready(parameter); });
    step.finish();
    mlp_.descend(engines_, kLearningRate, kMomentum);
  }

  // ms of a step.
  template <class Step>
  double time(std::size_t steps, const Step& step) {
    stream_.synchronize();
    const auto begin = Clock::now();
    for (std::size_t i = 0; i < steps; ++i) step();
    stream_.synchronize();
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count() / static_cast<double>(steps);
  }

  std::size_t bucket_count() const { return model_.bucket_count(); }
  cudaStream_t stream() const { return stream_.get(); }

 private:
  ddp::DistributedDataParallelOptions engine_options() const {
    ddp::DistributedDataParallelOptions engine;
    engine.zero_gradients = false;  // backward writes every one of them
    engine.collective.stream = stream_.get();
    return engine;
  }

  std::size_t batch_size_;
  train::Stream stream_;
  train::DeviceSpans spans_{stream_.get()};
  train::DeviceMlp mlp_;
  std::vector<ddp::Parameter> parameters_;
  DeviceArray<float> features_;
  DeviceArray<int> labels_;
  DeviceArray<double> loss_{1};
  ddp::DistributedDataParallel model_;
  std::vector<DeviceArray<float>> buffers_;
  std::vector<float*> plain_, engines_;
};

struct Pairs {
  std::vector<double> plains, engines, overheads;  // ms of a step; %
};

template <class Plain, class Engine>
Pairs compare(Sides& sides, std::size_t steps, std::size_t rounds, const Plain& plain, const Engine& engine) {
  Pairs pairs;
  for (std::size_t round = 0; round < rounds; ++round) {
    double without = 0, with = 0;
    if (round % 2 == 0) without = sides.time(steps, plain);
    with = sides.time(steps, engine);
    if (round % 2 != 0) without = sides.time(steps, plain);
    pairs.plains.push_back(without), pairs.engines.push_back(with);
    pairs.overheads.push_back(100 * (with / without - 1));
  }
  return pairs;
}

void add(Figures& figures, const std::string& what, const std::string& size, std::size_t buckets, const Pairs& pairs) {
  const auto [least, most] = std::minmax_element(pairs.overheads.begin(), pairs.overheads.end());
  figures.add(what + " without libddp, " + size, median(pairs.plains), "ms", 3);
  figures.add(what + " with libddp, one rank, " + std::to_string(buckets) + " buckets", median(pairs.engines), "ms", 3);
  figures.add("overhead, median of " + std::to_string(pairs.overheads.size()) + " pairs", median(pairs.overheads), "%",
              2);
  figures.add("the same, least", *least, "%", 2);
  figures.add("the same, most", *most, "%", 2);
}

void measure(const Numbers& numbers) {
  auto world = join();
  Sides sides(world, numbers);
  const auto plain = [&] { sides.plain_step(); };
  const auto engine = [&] { sides.engine_step(); };
  for (int i = 0; i < kWarmUpSteps; ++i) plain(), engine();

  unsigned long waits = 0;
  const auto counted = [&] {
    const unsigned long before = ddp::nccl_test::host_synchronisations();
    engine();
    waits += ddp::nccl_test::host_synchronisations() - before;
  };
  const std::size_t steps = numbers["steps"], rounds = numbers["rounds"];
  const Pairs calls = compare(sides, steps, rounds, plain, counted);
  sides.time(1, plain);  // so that nothing is under way when a capture begins
  const Graph plain_graph(sides.stream(), plain);
  const Graph engine_graph(sides.stream(), engine);
  const Pairs graphs = compare(
      sides, steps, rounds, [&] { plain_graph.launch(); }, [&] { engine_graph.launch(); });
  Figures figures("engine_overhead");
  const std::string size = std::to_string(numbers["layers"]) + " layers of " + std::to_string(numbers["width"]) +
                           ", batch of " + std::to_string(numbers["batch-size"]);
  add(figures, "a step", size, sides.bucket_count(), calls);
  add(figures, "a step as a CUDA graph", size, sides.bucket_count(), graphs);
  figures.add("calls in " + std::to_string(steps * rounds) + " of its steps that make the host wait for the device",
              static_cast<double>(waits), "", 0);
  figures.write(numbers.json());
  world.barrier();
}

}  // namespace

int main(int argc, char** argv) {
  const Numbers numbers(argc, argv,
                        {{"layers", 4, 100},
                         {"width", 8192, 32'768},
                         {"batch-size", 512, 65'536},
                         {"steps", 30, 10'000},
                         {"rounds", 15, 1'000}});
  try {
    measure(numbers);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
