#include "training.hpp"

#include <ddp/distributed_sampler.hpp>
#include <ddp/metrics.hpp>
#include <ddp/progress.hpp>
#include <ddp/sampler_cursor.hpp>
#include <ddp/step_report.hpp>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "agreed.hpp"
#include "engine.hpp"
#include "input_error.hpp"

namespace transformer {
namespace {

using Cursor = ddp::SamplerCursor<ddp::DistributedSampler>;

Shape shape_of(const Options& options, const Text& text) {
  return {text.vocabulary(), options.context, options.width, options.width / kHeadWidth, options.layers};
}

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

Cursor first_cursor(const Options& options, const Text& text, const ddp::ProcessGroup& world) {
  return Cursor(ddp::DistributedSampler({.sample_count = text.sample_count(options.context),
                                         .replicas = world.size(),
                                         .rank = world.rank(),
                                         .seed = options.seed,
                                         .drop_last = true}),
                options.batch_size, ddp::LastBatch::drop);
}

std::vector<std::int64_t> next_batch(Cursor& cursor) {
  auto batch = cursor.next_batch();
  while (batch.empty()) {
    cursor.next_epoch();
    batch = cursor.next_batch();
  }
  return batch;
}

std::string ranks_text(int ranks) { return std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks"); }

std::string description(const ddp::ProcessGroup& world, const Options& options, TrainingState& state) {
  std::size_t count = 0;
  const auto parameters = state.model.parameters();
  for (const ddp::Parameter& parameter : parameters) count += parameter.values.count;
  return ranks_text(world.size()) + " from step " + std::to_string(state.step) + ", " + std::to_string(count) +
         " numbers in " + std::to_string(parameters.size()) + " parameters, " + method_of(options);
}

std::string description(const ddp::LoadedCheckpoint& loaded) {
  return "loaded the checkpoint of step " + std::to_string(loaded.step) + (loaded.is_from_memory ? " in memory" : "") +
         ", saved by " + ranks_text(loaded.rank_count);
}

// What is known of the step's time: nothing yet, or in the last steps.
std::string report_text(double loss, const TrainingState& state, const std::optional<ddp::StepReport>& times) {
  char text[64];
  std::snprintf(text, sizeof text, "loss %.4f, ", loss);
  if (!times) return text + ("step " + std::to_string(state.step));
  ddp::StepReport report = *times;
  report.step = state.step;
  return text + ddp::to_text(report);
}

// Numbers of any count: --steps may be larger than when it was saved.
ddp::Checkpointer::Text losses_as_text(TrainingState& state) {
  return {
      [&state] {
        return std::string(reinterpret_cast<const char*>(state.losses.data()), state.losses.size() * sizeof(double));
      },
      [&state](const std::string& saved) {
        std::memcpy(state.losses.data(), saved.data(), std::min(saved.size(), state.losses.size() * sizeof(double)));
      }};
}

// Empty if there is nowhere to save to.
std::optional<ddp::Checkpointer> make_checkpointer(const ddp::ProcessGroup& world, const Training& training,
                                                   Engine& engine, Cursor& cursor) {
  if (training.memory == nullptr && training.options.checkpoints.empty()) return std::nullopt;
  ddp::CheckpointerOptions options;
  options.directory = training.options.checkpoints;
  options.memory = training.memory;
  ddp::Checkpointer checkpoints(world, options);
  engine.add_to(checkpoints);
  checkpoints.add("sampler", cursor);
  checkpoints.add("step", training.state.step);
  checkpoints.add_text("losses", losses_as_text(training.state));
  return checkpoints;
}

ddp::ProgressOptions progress_options() {
  ddp::ProgressOptions result;
  result.lines = false;  // run() prints its own; on a terminal there is a bar below them
  return result;
}

ddp::StepReportOptions report_options(const Options& options) {
  ddp::StepReportOptions result;
  result.every = kReportEvery;
  result.write = [](const std::string&) {};  // run() prints them together with the loss
  result.single_rank_file = options.baseline.string();
  return result;
}

}  // namespace

TrainingState::TrainingState(const Options& options, const Text& text)
    : model(shape_of(options, text), options.seed),
      optimizer(model.parameters(), adamw_options(options)),
      losses((options.steps + kReportEvery - 1) / kReportEvery) {}

std::vector<LossPoint> TrainingState::loss_points() const {
  std::vector<LossPoint> points;
  for (std::size_t i = 0; i * kReportEvery < step; ++i) {
    points.push_back({std::min((i + 1) * kReportEvery, step), losses[i]});
  }
  return points;
}

void Training::run(ddp::ProcessGroup& world) {
  train::run_agreed(world, [&] { require_samples(options, text, world.size()); });
  Engine engine(world, state.model.parameters(), state.optimizer, options);
  Cursor cursor = first_cursor(options, text, world);
  ddp::Progress progress(world.rank(), progress_options());
  auto checkpoints = make_checkpointer(world, *this, engine, cursor);
  if (checkpoints) {
    if (const auto loaded = checkpoints->load()) progress.print_line(description(*loaded));
  }
  progress.print_line(description(world, options, state));
  progress.begin(options.steps, state.step);
  ddp::StepReporter report(world, report_options(options));
  ddp::Mean loss;
  std::uint64_t saved_step = state.step;
  std::uint64_t reported_step = 0;  // as the reporter counts
  while (state.step < options.steps) {
    const Batch batch = text.batch(next_batch(cursor), options.context);
    auto step = engine.begin_step();
    const double batch_loss = state.model.forward(batch, [&](std::size_t parameter) { engine.wait(parameter); });
    loss.add(batch_loss);
    state.model.backward(batch, engine.gradients(), [&](std::size_t parameter) { step.ready(parameter); });
    report.finish(step, options.batch_size);
    const bool is_same_on_all_ranks = engine.update();
    ++state.step;
    progress.step(options.batch_size * static_cast<std::size_t>(world.size()), batch_loss);
    if (state.step % kReportEvery == 0 || state.step == options.steps) {
      const double mean = state.losses[(state.step - 1) / kReportEvery] = loss.read(world);
      loss.reset();
      auto times = report.newest();
      if (times && std::exchange(reported_step, times->step) == times->step) times.reset();
      progress.print_line(report_text(mean, state, times));
    }
    if (checkpoints && is_same_on_all_ranks && state.step >= saved_step + kSaveEvery) {
      checkpoints->save(saved_step = state.step);
    }
  }
  engine.end();
  progress.finish();
  if (checkpoints) {
    if (saved_step < state.step) checkpoints->save(state.step);
    checkpoints->wait();
  }
  if (world.rank() == 0 && !options.loss_curve.empty()) {
    write_loss_curve(options.loss_curve, state.loss_points(),
                     model_of(options) + ", " + ranks_text(world.size()) + ", " + method_of(options));
  }
}

}  // namespace transformer
