#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ddp/error.hpp"
#include "ddp/local_sgd.hpp"
#include "worker_runtime/engine/handle.hpp"
#include "worker_runtime/engine/local_sgd/average_ranges.hpp"

namespace ddp {
namespace {

[[noreturn]] void refuse_average(const std::string& what, const std::string& advice) {
  throw InvalidArgument(what + "\nwhere: ParameterAverage\ntry:   " + advice);
}

void check_average(const std::vector<AverageLevel>& levels, const std::vector<Parameter>& parameters) {
  if (levels.empty()) refuse_average("no group to average over", "at least one level");
  std::uint64_t period = 1;
  for (const AverageLevel& level : levels) {
    if (level.group.impl() == nullptr) refuse_average("a level without a group", "a group that has this rank in it");
    if (level.period == 0 || level.period % period != 0) {
      refuse_average("a period of " + std::to_string(level.period) + " steps behind one of " + std::to_string(period),
                     "periods above 0 that rise, each a multiple of the one before");
    }
    period = level.period;
  }
  for (const Parameter& parameter : parameters) {
    if (!gradient_engine::can_be_averaged(parameter.values.type)) {
      refuse_average("parameter " + parameter.name + " is of type " + name_of(parameter.values.type),
                     "float32, float64, float16 or bfloat16");
    }
  }
}

}  // namespace

class ParameterAverage::Impl {
 public:
  Impl(std::vector<AverageLevel> levels, const std::vector<Parameter>& parameters, ParameterAverageOptions options)
      : levels_(std::move(levels)), options_(options) {
    for (const Parameter& parameter : parameters) values_.push_back(parameter.values);
  }

  bool step() {
    const auto number = static_cast<std::uint64_t>(step_++);
    if (number < options_.start_step) return false;
    AverageLevel* due = nullptr;
    for (AverageLevel& level : levels_) {
      if ((number - options_.start_step) % level.period == 0) due = &level;
    }
    if (due == nullptr) return false;
    gradient_engine::average(due->group, values_, options_.collective);
    return true;
  }

  std::vector<Parameter> state() { return {{"parameter_average.step", {}, MemoryRange(&step_, 1, DataType::int64)}}; }

 private:
  std::vector<AverageLevel> levels_;
  std::vector<MemoryRange> values_;
  ParameterAverageOptions options_;
  std::int64_t step_ = 0;
};

ParameterAverage::ParameterAverage(std::vector<AverageLevel> levels, std::vector<Parameter> parameters,
                                   ParameterAverageOptions options) {
  check_average(levels, parameters);
  impl_ = std::make_shared<Impl>(std::move(levels), parameters, options);
}

bool ParameterAverage::step() { return gradient_engine::require_impl(impl_, "ParameterAverage").step(); }
std::vector<Parameter> ParameterAverage::state() {
  return gradient_engine::require_impl(impl_, "ParameterAverage").state();
}

}  // namespace ddp
