// Fits a line to points, on workers that live on when one of them dies:
//
//   ddprun --standalone --nproc-per-node=4 --max-restarts=10 train_elastic
//
// Kill a worker while it runs: the others go on in their processes, beside a new one in its place, at the last
// committed step. Ends with 0, and prints the line found. SIGTERM or ctrl-c to ddprun stops all ranks after the same
// step.
#include <ddp/ddp.hpp>

#include <unistd.h>

#include <cstdio>
#include <exception>
#include <vector>

namespace {

constexpr std::size_t kSamples = 1'000'000, kBatch = 1000;
constexpr int kEpochs = 20;
constexpr double kRate = 0.5;

// What a failure goes back to, and a new worker begins with.
struct Progress {
  std::int64_t epoch = 0;
  std::int64_t batch = 0;  // in the epoch
  std::int64_t size = 0;   // ranks that shared the epoch so far; with others it begins anew
};

struct Line {
  std::vector<double> slope{0}, offset{0};
};

// Of sample i: x in [0, 1), and y on the line 3 x + 1.
double x_of(std::int64_t i) { return static_cast<double>(i) / kSamples; }
double y_of(std::int64_t i) { return 3 * x_of(i) + 1; }

// A program whose work is to go on later writes a checkpoint here.
void stop(const ddp::ProcessGroup& world, const Progress& progress) {
  if (world.rank() != 0) return;
  std::printf("stopped in epoch %ld before batch %ld\n", static_cast<long>(progress.epoch),
              static_cast<long>(progress.batch));
}

void train(ddp::ProcessGroup& world, Line& line, Progress& progress, ddp::ElasticState& state) {
  std::printf("rank %d of %d, pid %d: from epoch %ld\n", world.rank(), world.size(), ::getpid(),
              static_cast<long>(progress.epoch));
  std::fflush(stdout);
  // All that depends on the group is made here, and ends with it.
  ddp::DistributedDataParallel model(world, {{"slope", {1}, line.slope}, {"offset", {1}, line.offset}});
  ddp::DistributedSamplerOptions sampling;
  sampling.sample_count = kSamples;
  sampling.replicas = world.size();
  sampling.rank = world.rank();
  const ddp::DistributedSampler sampler(sampling);
  double& slope_gradient = *static_cast<double*>(model.gradient(0).data);
  double& offset_gradient = *static_cast<double*>(model.gradient(1).data);

  for (; progress.epoch < kEpochs; ++progress.epoch, progress.batch = 0) {
    if (progress.size != world.size()) progress.batch = 0;  // the samples are shared otherwise now
    progress.size = world.size();
    const auto batches = sampler.batches(static_cast<std::uint64_t>(progress.epoch), kBatch, ddp::LastBatch::drop);
    while (progress.batch < static_cast<std::int64_t>(batches.size())) {
      if (world.should_stop()) return stop(world, progress);
      auto step = model.begin_step();
      for (const auto i : batches[static_cast<std::size_t>(progress.batch)]) {
        const double error = line.slope[0] * x_of(i) + line.offset[0] - y_of(i);
        slope_gradient += error * x_of(i) / kBatch;
        offset_gradient += error / kBatch;
      }
      step.ready(1);
      step.ready(0);
      step.finish();
      line.slope[0] -= kRate * slope_gradient;
      line.offset[0] -= kRate * offset_gradient;
      ++progress.batch;
      state.commit();
    }
  }
  if (world.rank() == 0) std::printf("y = %.6f x + %.6f\n", line.slope[0], line.offset[0]);
}

}  // namespace

int main() {
  try {
    Line line;
    Progress progress;
    ddp::ElasticState state;
    state.add(line.slope);
    state.add(line.offset);
    state.add_struct(progress);
    ddp::run_elastic(state, [&](ddp::ProcessGroup world) { train(world, line, progress, state); });
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
