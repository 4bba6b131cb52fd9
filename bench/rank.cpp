#include "bench/rank.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/model.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/error.hpp"
#include "ddp/parameter_check.hpp"
#include "ddp/process_group.hpp"
#include "ddp/step_report.hpp"

namespace ddp::bench {
namespace {

constexpr std::size_t kWarmUpSteps = 3;
constexpr std::size_t kWarmUpBarriers = 20;

double milliseconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

StepReport train(ProcessGroup& world, Model& model, const Settings& settings) {
  DistributedDataParallelOptions options;
  options.zero_gradients = false;  // backward overwrites them
  DistributedDataParallel engine(world, model.parameters(), options);
  std::vector<float*> gradients;
  for (std::size_t p = 0; p < engine.parameter_count(); ++p) {
    gradients.push_back(engine.gradient<float>(p).data());
  }
  std::optional<StepReporter> reporter;
  const std::size_t unmeasured = kWarmUpSteps - 1;  // the reporter does not measure its first step
  for (std::size_t number = 0; number < kWarmUpSteps + settings.steps; ++number) {
    if (number == unmeasured) {
      StepReportOptions report;
      report.every = settings.steps + 1;
      report.write = [](const std::string&) {};
      reporter.emplace(world, report);
    }
    auto step = engine.begin_step();
    model.forward();
    model.backward(gradients, [&](std::size_t layer) { step.ready(layer); });
    if (reporter) {
      reporter->finish(step, settings.batch);
    } else {
      step.finish();
    }
    model.update(gradients);
  }
  return reporter->newest().value();
}

double median_barrier_us(ProcessGroup& world, std::size_t count) {
  std::vector<double> durations;
  for (std::size_t i = 0; i < kWarmUpBarriers + count; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    world.barrier();
    const std::chrono::duration<double, std::micro> duration = std::chrono::steady_clock::now() - begin;
    if (i >= kWarmUpBarriers) durations.push_back(duration.count());
  }
  const auto middle = durations.begin() + static_cast<std::ptrdiff_t>(durations.size() / 2);
  std::nth_element(durations.begin(), middle, durations.end());
  return *middle;
}

}  // namespace

std::optional<Result> measure_as_rank(const Settings& settings) {
  InitOptions options;
  options.backend = "cpu";
  ProcessGroup world = init_process_group(options);
  Model model(settings.parameters, settings.batch, static_cast<std::uint64_t>(world.rank()) + 2);
  const StepReport report = train(world, model, settings);
  const double barrier_us = median_barrier_us(world, settings.barriers);
  check_parameters_equal(world, model.parameters());
  if (world.rank() != 0) return std::nullopt;
  return Result{.ranks = world.size(),
                .parameters = model.parameter_count(),
                .samples_per_second = report.samples_per_second,
                .compute_ms = milliseconds(report.compute),
                .communication_ms = milliseconds(report.communication),
                .waiting_ms = milliseconds(report.waiting),
                .barrier_us = barrier_us};
}

}  // namespace ddp::bench
