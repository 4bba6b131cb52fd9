#include "training.hpp"

#include <ddp/trace.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>

#include "data.hpp"
#include "input_error.hpp"
#include "kernels.hpp"

namespace train {

namespace {

constexpr float kMomentum = 0.9F;
constexpr std::size_t kSyntheticBatches = 16;  // of each rank in an epoch

std::vector<std::size_t> widths_of(const CudaOptions& options, std::size_t features, std::size_t classes) {
  std::vector<std::size_t> widths{features};
  widths.insert(widths.end(), options.layers - 1, options.width);
  widths.push_back(classes);
  return widths;
}

DeviceSamples on_device(const Samples& samples) {
  return {DeviceArray<float>(samples.features), DeviceArray<int>(samples.labels)};
}

DeviceSamples make_up(std::size_t count, std::size_t width, std::uint64_t seed, cudaStream_t stream) {
  DeviceSamples samples{DeviceArray<float>(count * width), DeviceArray<int>(count)};
  kernels::fill_uniform(samples.features.data(), samples.features.size(), 1, seed, stream);
  kernels::fill_labels(samples.labels.data(), count, static_cast<int>(width), seed + 1, stream);
  return samples;
}

// Every rank makes up its own samples, so that they take as much memory with many ranks as with one.
Task synthetic_task(const CudaOptions& options, int rank, cudaStream_t stream) {
  const auto seed_of = [&](std::uint64_t set) {
    return options.seed + kLayersMax + 2 * set;
  };  // beyond those of the weights
  return {{widths_of(options, options.width, options.width), options.batch_size},
          make_up(options.batch_size * kSyntheticBatches, options.width, seed_of(static_cast<std::uint64_t>(rank) + 1),
                  stream),
          make_up(options.batch_size, options.width, seed_of(0), stream)};
}

Task task_of_data(const CudaOptions& options, const ddp::ProcessGroup& world) {
  const Dataset dataset = read_csv(options.data);
  const Split split = split_and_standardise(dataset.samples);
  if (split.train.size() < options.batch_size * static_cast<std::size_t>(world.size())) {
    throw InputError("the training part has " + std::to_string(split.train.size()) +
                     " samples, too few for one step of " + std::to_string(options.batch_size) + " on each of " +
                     std::to_string(world.size()) + " workers\nwhere: " + options.data.string() +
                     "\ntry:   a smaller --batch-size, or fewer workers");
  }
  return {{widths_of(options, dataset.samples.feature_count, dataset.class_names.size()), options.batch_size},
          on_device(split.train),
          on_device(split.test),
          world.size(),
          world.rank()};
}

}  // namespace

Training::Training(ddp::ProcessGroup world, const CudaOptions& options)
    : world_(std::move(world)),
      options_(options),
      task_(options.is_synthetic ? synthetic_task(options, world_.rank(), stream_.get())
                                 : task_of_data(options, world_)),
      mlp_(task_.shape, options.seed, options.use_tf32, stream_.get(), spans_),
      model_(world_, mlp_.parameters(world_.device().index), engine_options()),
      batches_(std::move(task_.train.features), std::move(task_.train.labels), task_.shape.widths.front(),
               {options.batch_size, task_.replicas, task_.replica, options.seed}, stream_.get()) {
  for (std::size_t p = 0; p < model_.parameter_count(); ++p) gradients_.push_back(model_.gradient<float>(p).data());
}

void Training::run() {
  for (std::uint64_t epoch = 0; epoch < options_.epochs; ++epoch) run_epoch(epoch);
  model_.check();  // finish() of the last step did not wait for the GPU, and so did not throw that step's error
  report_accuracy();
  spans_.finish();
}

ddp::DistributedDataParallelOptions Training::engine_options() const {
  ddp::DistributedDataParallelOptions engine;
  engine.zero_gradients = false;  // backward writes every one of them
  engine.collective.stream = stream_.get();
  return engine;
}

void Training::run_epoch(std::uint64_t epoch) {
  const std::size_t count = batches_.begin_epoch(epoch);
  check(cudaMemsetAsync(loss_.data(), 0, loss_.bytes(), stream_.get()), "zeroing device memory");
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < count; ++i) step(i);
  stream_.synchronize();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double loss = mean_loss(count);
  if (world_.rank() != 0) return;
  std::printf("epoch %llu of %llu: loss %.6f, %.2f ms a step, %.0f samples a second\n",
              static_cast<unsigned long long>(epoch + 1), static_cast<unsigned long long>(options_.epochs), loss,
              1000 * seconds / static_cast<double>(count),
              static_cast<double>(count * options_.batch_size) * world_.size() / seconds);
  std::fflush(stdout);  // a pipe or a file would keep it until the end
}

void Training::step(std::size_t batch) {
  const ddp::TraceSpan span("step");
  batches_.load(batch);
  auto step = model_.begin_step();
  mlp_.forward(batches_.features(), batches_.labels(), options_.batch_size, loss_.data());
  mlp_.backward(gradients_, [&](std::size_t parameter) { step.ready(parameter); });
  step.finish();
  mlp_.descend(gradients_, options_.learning_rate, kMomentum);
}

// Over the batches of all ranks.
double Training::mean_loss(std::size_t batches) {
  const ddp::CollectiveOptions on_stream{.timeout = {}, .stream = stream_.get()};
  world_.all_reduce({loss_.data(), 1, ddp::DataType::float64, world_.device()}, ddp::ReduceOp::average, on_stream);
  world_.barrier(on_stream);  // blocks, and throws where any collective of the epoch has failed
  double loss = 0;
  check(cudaMemcpy(&loss, loss_.data(), sizeof loss, cudaMemcpyDeviceToHost), "copying to the host");
  return loss / static_cast<double>(batches);
}

void Training::report_accuracy() {
  const std::size_t count = task_.test.labels.size();
  DeviceArray<unsigned> right(1);
  check(cudaMemsetAsync(right.data(), 0, right.bytes(), stream_.get()), "zeroing device memory");
  for (std::size_t row = 0; row < count; row += options_.batch_size) {
    mlp_.count_right(task_.test.features.data() + row * task_.shape.widths.front(), task_.test.labels.data() + row,
                     std::min(options_.batch_size, count - row), right.data());
  }
  stream_.synchronize();
  unsigned sum = 0;
  check(cudaMemcpy(&sum, right.data(), sizeof sum, cudaMemcpyDeviceToHost), "copying to the host");
  if (world_.rank() == 0)
    std::printf("accuracy on %zu other samples: %.1f %%\n", count, 100.0 * sum / static_cast<double>(count));
}

}  // namespace train
