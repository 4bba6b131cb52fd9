#include "worker_runtime/engine/plan/plan.hpp"

#include "ddp/error.hpp"

#include <utility>

namespace ddp::gradient_engine {

Plan::Plan(std::vector<std::string> names, const std::vector<std::vector<std::size_t>>& buckets, PlanOptions options)
    : names_(std::move(names)),
      options_(options),
      bucket_of_(names_.size()),
      ready_in_(names_.size()),
      rebuild_(options.rebuilds_buckets ? Rebuild::after_first_window : Rebuild::not_wanted) {
  set_buckets(buckets);
}

Actions Plan::begin(Sync sync) {
  if (is_open_) {
    throw GradientError(
        "a step begins while the one before it is unfinished\nwhere: DistributedDataParallel::begin_step\n"
        "try:   call finish() or cancel() at the end of every backward pass, on every rank");
  }
  Actions actions{Drain{}};
  ++step_;
  if (!window_begun_) {
    begin_window();
    if (options_.zero_gradients) actions.emplace_back(ZeroAll{});
  }
  is_open_ = true;
  sync_ = sync;
  awaited_ = parameter_counts_;
  order_.clear();
  return actions;
}

Actions Plan::ready(std::uint64_t step, std::size_t parameter) {
  require_open(step, "ready");
  check_index(parameter, "Step::ready");
  if (ready_in_[parameter] == step_) {
    throw GradientError("parameter " + names_[parameter] + " (index " + std::to_string(parameter) +
                        ") is ready for the second time in one step\nwhere: DistributedDataParallel::Step::ready\n"
                        "try:   call ready() once, after the last write to a gradient: where layers share a "
                        "parameter, after the last of them");
  }
  ready_in_[parameter] = step_;
  Actions actions;
  if (sync_ == Sync::off) return actions;
  order_.push_back(parameter);
  --awaited_[bucket_of_[parameter]];
  while (next_reduce_ < awaited_.size() && awaited_[next_reduce_] == 0) actions.emplace_back(Reduce{next_reduce_++});
  return actions;
}

Actions Plan::end(std::uint64_t step) {
  require_open(step, "finish");
  is_open_ = false;
  Actions actions;
  if (sync_ == Sync::off) return actions;
  std::vector<std::size_t> missing;
  for (std::size_t parameter = 0; parameter < names_.size(); ++parameter) {
    if (ready_in_[parameter] < first_step_) missing.push_back(parameter);
  }
  for (const std::size_t parameter : missing) actions.emplace_back(Zero{parameter});
  reduce_rest(actions);
  actions.emplace_back(Agree{.own = {.missing_count = static_cast<std::int32_t>(missing.size())}});
  unlooked_.push_back(std::move(missing));
  if (options_.look_at == LookAt::end_of_window || unlooked_.size() > 1) actions.emplace_back(Look{});
  last_order_ = order_;
  window_begun_ = false;
  return actions;
}

Actions Plan::cancel(std::uint64_t step) {
  Actions actions;
  if (!is_open_ || step != step_) return actions;
  is_open_ = false;
  window_begun_ = false;
  if (sync_ == Sync::off) return actions;
  reduce_rest(actions);
  actions.emplace_back(Agree{.own = {.canceller = 1 + options_.rank}, .is_read = false});
  // The others look at the flags of the window before, too, and FindUnused may follow.
  if (!unlooked_.empty()) actions.emplace_back(Look{});
  return actions;
}

Actions Plan::looked(Flags of_all) {
  const bool is_of_last_window = options_.look_at == LookAt::end_of_next_window;
  std::vector<std::size_t> missing = std::move(unlooked_.front());
  unlooked_.pop_front();
  if (of_all.canceller > 0) return {TellCancelled{of_all.canceller - 1, is_of_last_window}};
  if (of_all.missing_count > 0) return {FindUnused{std::move(missing), is_of_last_window}};
  if (rebuild_ == Rebuild::after_first_window) rebuild_ = Rebuild::due;
  return {};
}

void Plan::failed() {
  is_open_ = false;
  window_begun_ = false;
  unlooked_.clear();
}

void Plan::rebuild(const std::vector<std::vector<std::size_t>>& buckets) {
  require_no_window("rebuild_buckets");
  rebuild_ = Rebuild::not_wanted;
  set_buckets(buckets);
}

std::vector<std::size_t> Plan::ready_order() const {
  std::vector<std::size_t> order = last_order_;
  std::vector<bool> is_in(names_.size());
  for (const std::size_t parameter : order) is_in[parameter] = true;
  for (std::size_t parameter = names_.size(); parameter-- > 0;) {
    if (!is_in[parameter]) order.push_back(parameter);
  }
  return order;
}

void Plan::require_no_window(const char* call) const {
  if (!is_open_ && !window_begun_) return;
  throw GradientError(std::string(call) + "() is called before the gradients are averaged\n" +
                      "where: DistributedDataParallel::" + call +
                      "\ntry:   call it after finish() of a step with Sync::on, and before the next begin_step()");
}

void Plan::check_index(std::size_t parameter, const char* call) const {
  if (parameter < names_.size()) return;
  throw InvalidArgument("parameter " + std::to_string(parameter) + " of a model with " + std::to_string(names_.size()) +
                        "\nwhere: DistributedDataParallel::" + call +
                        "\ntry:   an index into the parameters that the model was made with");
}

void Plan::require_open(std::uint64_t step, const char* call) const {
  if (is_open_ && step == step_) return;
  throw GradientError(std::string(call) +
                      "() is called on a Step that is over\nwhere: DistributedDataParallel::Step::" + call +
                      "\ntry:   a Step of its own from begin_step() for every backward pass; finish() and "
                      "cancel() end it, and so does an error of a collective");
}

void Plan::set_buckets(const std::vector<std::vector<std::size_t>>& buckets) {
  parameter_counts_.clear();
  for (const std::vector<std::size_t>& parameters : buckets) {
    for (const std::size_t parameter : parameters) bucket_of_[parameter] = parameter_counts_.size();
    parameter_counts_.push_back(parameters.size());
  }
}

void Plan::begin_window() {
  window_begun_ = true;
  first_step_ = step_;
  next_reduce_ = 0;
}

void Plan::reduce_rest(Actions& actions) {
  while (next_reduce_ < parameter_counts_.size()) actions.emplace_back(Reduce{next_reduce_++});
}

}  // namespace ddp::gradient_engine
