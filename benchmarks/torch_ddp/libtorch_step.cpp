// A training step in C++ by ddp/torch.hpp: with its all-reduces, and without (no_sync), in turn. The same network as in
// torch_ddp.py: 24.9 million parameters, 32 samples per rank.
//
//   T=$(python -c 'import torch; print(torch.__path__[0])')
//   g++ -std=c++20 -O2 -I include -isystem $T/include -isystem $T/include/torch/csrc/api/include
//       benchmarks/torch_ddp/libtorch_step.cpp -o libtorch_step -L build/release/lib -lddp -L $T/lib
//       -Wl,--no-as-needed -ltorch -ltorch_cpu -lc10 -Wl,-rpath,$T/lib:$PWD/build/release/lib
//   ddprun --standalone --nproc-per-node=2 --no-python ./libtorch_step [blocks]      default 15
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "ddp/ddp.hpp"
#include "ddp/torch.hpp"

namespace {

namespace nn = ::torch::nn;

constexpr int kLayers = 4, kWidth = 2496, kBatch = 32, kSteps = 4;  // steps in a block

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int count, char** arguments) {
  const int blocks = count > 1 ? std::atoi(arguments[1]) : 15;
  ::torch::set_num_threads(1);
  auto world = ddp::init_process_group();
  nn::Sequential net;
  for (int layer = 0; layer < kLayers; ++layer) {
    net->push_back(nn::Linear(kWidth, kWidth));
    net->push_back(nn::ReLU());
  }
  const ddp::torch::DistributedDataParallel<nn::SequentialImpl> model(world, net);
  const auto input = ::torch::randn({kBatch, kWidth});
  // The time of a step, the slowest rank's.
  const auto time_block = [&](bool with_sync) {
    world.barrier();
    const auto begin = std::chrono::steady_clock::now();
    for (int step = 0; step < kSteps; ++step) {
      net->zero_grad();
      std::optional<ddp::torch::NoSync> unsynced;
      if (!with_sync) unsynced.emplace(model.no_sync());
      model.forward(input).square().mean().backward();
    }
    double taken = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() / kSteps;
    world.all_reduce(ddp::MemoryRange(&taken, 1), ddp::ReduceOp::max);
    return taken;
  };
  std::array<std::vector<double>, 2> times;
  std::vector<double> ratios;
  time_block(false), time_block(true);
  for (int block = 0; block < blocks; ++block) {
    for (const bool with_sync : {block % 2 == 0, block % 2 != 0}) times[with_sync].push_back(time_block(with_sync));
    ratios.push_back(times[1].back() / times[0].back());
  }
  if (world.rank() != 0) return 0;
  std::printf("%d ranks, %d blocks: without sync %.1f ms, with %.1f ms, ratio %.2f (%.2f to %.2f)\n", world.size(),
              blocks, median(times[0]), median(times[1]), median(ratios),
              *std::min_element(ratios.begin(), ratios.end()), *std::max_element(ratios.begin(), ratios.end()));
}
