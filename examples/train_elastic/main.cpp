// Fits a line to points, on workers that live on when one of them dies:
//
//   ddprun --standalone --nproc-per-node=4 --max-restarts=10 train_elastic
//
// Kill a worker while it runs: the others go on in their processes, beside a new one in its place, at the last
// committed step. Ends with 0, and prints the line found. SIGTERM or ctrl-c to ddprun stops all ranks after the same
// step.
#include <ddp/ddp.hpp>

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kSamples = 1'000'000, kBatch = 1000;
constexpr std::uint64_t kEpochs = 20;
constexpr double kRate = 0.5;

struct Line {
  std::vector<double> slope{0}, offset{0};
};

// Of sample i: x in [0, 1), and y on the line 3 x + 1.
double x_of(std::int64_t i) { return static_cast<double>(i) / kSamples; }
double y_of(std::int64_t i) { return 3 * x_of(i) + 1; }

std::string text_of(const ddp::SamplerPosition& position) {
  return std::to_string(position.epoch) + " after " + std::to_string(position.taken) + " samples";
}

// A program whose work is to go on later writes a checkpoint here.
void stop(const ddp::ProcessGroup& world, const ddp::SamplerPosition& position) {
  if (world.rank() == 0) std::printf("stopped in epoch %s\n", text_of(position).c_str());
}

void train(ddp::ProcessGroup& world, Line& line, ddp::SamplerPosition& position, ddp::ElasticState& state) {
  std::printf("rank %d of %d, pid %d: from epoch %s\n", world.rank(), world.size(), ::getpid(),
              text_of(position).c_str());
  std::fflush(stdout);
  // All that depends on the group is made here, and ends with it.
  ddp::DistributedDataParallel model(world, {{"slope", {1}, line.slope}, {"offset", {1}, line.offset}});
  ddp::DistributedSamplerOptions sampling;
  sampling.sample_count = kSamples;
  sampling.replicas = world.size();
  sampling.rank = world.rank();
  ddp::SamplerCursor cursor(ddp::DistributedSampler(sampling), kBatch, ddp::LastBatch::drop);
  // Of a round before, which perhaps had another number of ranks: they share the rest of the epoch.
  if (position != ddp::SamplerPosition{}) cursor.restore(position);
  double& slope_gradient = *static_cast<double*>(model.gradient(0).data);
  double& offset_gradient = *static_cast<double*>(model.gradient(1).data);

  for (; cursor.state().epoch < kEpochs; cursor.next_epoch()) {
    while (true) {
      if (world.should_stop()) return stop(world, position);
      const auto batch = cursor.next_batch();
      if (batch.empty()) break;
      auto step = model.begin_step();
      for (const auto i : batch) {
        const double error = line.slope[0] * x_of(i) + line.offset[0] - y_of(i);
        slope_gradient += error * x_of(i) / kBatch;
        offset_gradient += error / kBatch;
      }
      step.ready(1);
      step.ready(0);
      step.finish();
      line.slope[0] -= kRate * slope_gradient;
      line.offset[0] -= kRate * offset_gradient;
      position = cursor.state();
      state.commit();
    }
  }
  if (world.rank() == 0) std::printf("y = %.6f x + %.6f\n", line.slope[0], line.offset[0]);
}

}  // namespace

int main() {
  try {
    Line line;
    ddp::SamplerPosition position;
    ddp::ElasticState state;
    state.add(line.slope);
    state.add(line.offset);
    state.add_struct(position);
    ddp::run_elastic(state, [&](ddp::ProcessGroup world) { train(world, line, position, state); });
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
