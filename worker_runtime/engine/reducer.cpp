#include "worker_runtime/engine/reducer.hpp"

#include "ddp/error.hpp"

#include <utility>

namespace ddp::gradient_engine {

Reducer::Reducer(std::vector<std::string> names, const std::vector<std::vector<std::size_t>>& buckets)
    : names_(std::move(names)), bucket_of_(names_.size()) {
  for (const std::vector<std::size_t>& parameters : buckets) {
    for (const std::size_t parameter : parameters) bucket_of_[parameter] = parameter_counts_.size();
    parameter_counts_.push_back(parameters.size());
  }
}

bool Reducer::begin_step(Sync sync) {
  if (is_open_) {
    throw GradientError(
        "a step begins while the one before it is unfinished\nwhere: DistributedDataParallel::begin_step\n"
        "try:   call finish() at the end of every backward pass, on every rank");
  }
  const bool starts_window = !window_begun_;
  if (starts_window) begin_window();
  is_open_ = true;
  sync_ = sync;
  ready_.assign(names_.size(), false);
  awaited_ = parameter_counts_;
  return starts_window;
}

BucketRange Reducer::ready(std::size_t parameter) {
  check_open("ready");
  check_index(parameter, "Step::ready");
  if (ready_[parameter]) {
    throw GradientError("parameter " + names_[parameter] + " (index " + std::to_string(parameter) +
                        ") is ready for the second time in one step\nwhere: DistributedDataParallel::Step::ready\n"
                        "try:   call ready() once, after the last write to a gradient: where layers share a "
                        "parameter, after the last of them");
  }
  ready_[parameter] = true;
  used_[parameter] = true;
  const std::size_t begin = next_launch_;
  if (sync_ == Sync::on) {
    --awaited_[bucket_of_[parameter]];
    while (next_launch_ < awaited_.size() && awaited_[next_launch_] == 0) ++next_launch_;
  }
  return {begin, next_launch_};
}

Reducer::Rest Reducer::finish() {
  check_open("finish");
  is_open_ = false;
  Rest rest;
  rest.sync = sync_;
  if (sync_ == Sync::off) return rest;
  window_begun_ = false;
  rest.launches = {next_launch_, parameter_counts_.size()};
  for (std::size_t parameter = 0; parameter < used_.size(); ++parameter) {
    if (!used_[parameter]) rest.missing.push_back(parameter);
  }
  return rest;
}

void Reducer::abandon() {
  is_open_ = false;
  window_begun_ = false;
}

void Reducer::check_index(std::size_t parameter, const char* call) const {
  if (parameter < names_.size()) return;
  throw InvalidArgument("parameter " + std::to_string(parameter) + " of a model with " + std::to_string(names_.size()) +
                        "\nwhere: DistributedDataParallel::" + call +
                        "\ntry:   an index into the parameters that the model was made with");
}

void Reducer::check_open(const char* call) const {
  if (is_open_) return;
  throw GradientError(std::string(call) + "() is called outside a step\nwhere: DistributedDataParallel::Step::" + call +
                      "\ntry:   begin_step() before, and finish() once for each");
}

void Reducer::begin_window() {
  window_begun_ = true;
  used_.assign(names_.size(), false);
  next_launch_ = 0;
}

}  // namespace ddp::gradient_engine
