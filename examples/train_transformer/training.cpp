#include "training.hpp"

#include <ddp/distributed_sampler.hpp>
#include <ddp/metrics.hpp>
#include <ddp/sampler_cursor.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "agreed.hpp"
#include "engine.hpp"
#include "input_error.hpp"
#include "scaling.hpp"

namespace transformer {
namespace {

using Clock = std::chrono::steady_clock;
using Cursor = ddp::SamplerCursor<ddp::DistributedSampler>;

Shape shape_of(const Options& options, const Text& text) {
  return {text.vocabulary(), options.context, options.width, options.width / kHeadWidth, options.layers};
}

// What a rate of samples per second depends on, beside the ranks.
std::string model_of(const Options& options) {
  return std::to_string(options.layers) + " layers, width " + std::to_string(options.width) + ", context " +
         std::to_string(options.context) + ", batch " + std::to_string(options.batch_size);
}

void require_samples(const Options& options, const Text& text, int ranks) {
  const std::size_t count = text.sample_count(options.context);
  const std::size_t needed = options.batch_size * static_cast<std::size_t>(ranks);
  if (count >= needed) return;
  throw train::InputError("the text has " + std::to_string(count) + " samples of " + std::to_string(options.context) +
                          " characters, too few for one step of " + std::to_string(needed) + "\nwhere: " +
                          options.data.string() + "\ntry:   a smaller --batch-size or --context, or fewer ranks");
}

Cursor cursor_at(const ddp::SamplerPosition& position, const Options& options, const Text& text,
                 const ddp::ProcessGroup& world) {
  Cursor cursor(ddp::DistributedSampler({.sample_count = text.sample_count(options.context),
                                         .replicas = world.size(),
                                         .rank = world.rank(),
                                         .seed = options.seed,
                                         .drop_last = true}),
                options.batch_size, ddp::LastBatch::drop);
  if (position != ddp::SamplerPosition{}) cursor.restore(position);
  return cursor;
}

std::vector<std::int64_t> next_batch(Cursor& cursor) {
  auto batch = cursor.next_batch();
  while (batch.empty()) {
    cursor.next_epoch();
    batch = cursor.next_batch();
  }
  return batch;
}

// Samples of all ranks per second, since the start of the interval.
class Stopwatch {
 public:
  explicit Stopwatch(std::uint64_t step) : step_(step) {}

  double rate(std::uint64_t step, std::size_t samples_per_step) const {
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    return static_cast<double>((step - step_) * samples_per_step) / seconds;
  }

 private:
  std::uint64_t step_;
  Clock::time_point start_ = Clock::now();
};

std::string ranks_text(int ranks) { return std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks"); }

void describe(const ddp::ProcessGroup& world, const Options& options, TrainingState& state) {
  std::size_t count = 0;
  const auto parameters = state.model.parameters();
  for (const ddp::Parameter& parameter : parameters) count += parameter.values.count;
  std::printf("%s from step %llu, %zu numbers in %zu parameters, %s\n", ranks_text(world.size()).c_str(),
              static_cast<unsigned long long>(state.step), count, parameters.size(), method_of(options).c_str());
  std::fflush(stdout);
}

void report(const Options& options, const TrainingState& state, double samples_per_second) {
  std::printf("step %6llu/%llu  loss %.4f  %.0f samples/s  %.0f characters/s\n",
              static_cast<unsigned long long>(state.step), static_cast<unsigned long long>(options.steps),
              state.losses[(state.step - 1) / kReportEvery], samples_per_second,
              samples_per_second * static_cast<double>(options.context));
  std::fflush(stdout);
}

}  // namespace

TrainingState::TrainingState(const Options& options, const Text& text)
    : model(shape_of(options, text), options.seed),
      optimizer(model.parameters(), adamw_options(options)),
      losses((options.steps + kReportEvery - 1) / kReportEvery) {}

void TrainingState::add_to(ddp::ElasticState& state) {
  for (const ddp::Parameter& parameter : model.parameters()) state.add(parameter.values);
  optimizer.add_to(state);
  state.add_struct(position);
  state.add(step);
  state.add(losses);
}

std::vector<LossPoint> TrainingState::loss_points() const {
  std::vector<LossPoint> points;
  for (std::size_t i = 0; i * kReportEvery < step; ++i) {
    points.push_back({std::min((i + 1) * kReportEvery, step), losses[i]});
  }
  return points;
}

void Training::run(ddp::ProcessGroup& world) {
  train::run_agreed(world, [&] { require_samples(options, text, world.size()); });
  const bool is_first = world.rank() == 0;
  const std::size_t samples_per_step = options.batch_size * static_cast<std::size_t>(world.size());
  const std::uint64_t first_step = state.step;
  if (is_first) describe(world, options, state);
  Engine engine(world, state.model.parameters(), state.optimizer, options);
  Cursor cursor = cursor_at(state.position, options, text, world);
  ddp::Mean loss;
  Stopwatch interval(state.step);
  Stopwatch whole(state.step);
  while (state.step < options.steps) {
    const Batch batch = text.batch(next_batch(cursor), options.context);
    auto step = engine.begin_step();
    loss.add(state.model.forward(batch));
    state.model.backward(batch, engine.gradients(), [&](std::size_t parameter) { step.ready(parameter); });
    step.finish();
    const bool is_same_on_all_ranks = engine.update();
    ++state.step;
    state.position = cursor.state();
    const bool is_last = state.step == options.steps;
    if (state.step % kReportEvery == 0 || is_last) {
      state.losses[(state.step - 1) / kReportEvery] = loss.read(world);
      loss.reset();
      if (is_first) report(options, state, interval.rate(state.step, samples_per_step));
      interval = Stopwatch(state.step);
    }
    // The first steps are slower than the rest: memory is touched for the first time.
    if (state.step == first_step + kReportEvery && !is_last) whole = Stopwatch(state.step);
    if (is_same_on_all_ranks) commit();
  }
  const double samples_per_second = whole.rate(state.step, samples_per_step);
  engine.end();
  if (!is_first) return;
  const std::string model = model_of(options);
  if (!options.loss_curve.empty()) {
    write_loss_curve(options.loss_curve, state.loss_points(),
                     model + ", " + ranks_text(world.size()) + ", " + method_of(options));
  }
  if (state.step == first_step) return;  // the last round ended after the last step, so this one has measured nothing
  const std::string scaling = scaling_efficiency({model, world.size(), samples_per_second}, options.baseline);
  std::printf("%s\n", scaling.c_str());
}

}  // namespace transformer
