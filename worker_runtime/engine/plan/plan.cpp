#include "worker_runtime/engine/plan/plan.hpp"

#include "ddp/error.hpp"

#include <algorithm>
#include <utility>

namespace ddp::gradient_engine {

Plan::Plan(std::vector<std::string> names, const std::vector<std::vector<std::size_t>>& buckets, PlanOptions options)
    : names_(std::move(names)),
      options_(options),
      queue_(names_.size()),
      ready_in_(names_.size()),
      rebuild_(options.rebuilds_buckets ? Rebuild::after_first_window : Rebuild::not_wanted) {
  if (options.is_static_graph) graph_.emplace(names_.size());
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
  if (!window_begun_) begin_window(actions);
  is_open_ = true;
  sync_ = sync;
  queue_.begin_step();
  if (graph_) graph_->begin_step();
  order_.clear();
  return actions;
}

Actions Plan::ready(std::uint64_t step, std::size_t parameter) {
  require_open(step, "ready");
  check_index(parameter, "Step::ready");
  if (ready_in_[parameter] == step_ && !graph_) {
    throw GradientError("parameter " + names_[parameter] + " (index " + std::to_string(parameter) +
                        ") is ready for the second time in one step\nwhere: DistributedDataParallel::Step::ready\n"
                        "try:   call ready() once, after the last write to a gradient; or set the option static_graph "
                        "if layers share a parameter and every step uses it equally often");
  }
  ready_in_[parameter] = step_;
  Actions actions;
  if (sync_ == Sync::off) return actions;
  order_.push_back(parameter);
  if (!graph_ || graph_->count(parameter)) queue_.complete(parameter);
  while (queue_.is_next_complete()) actions.emplace_back(Reduce{queue_.take_next()});
  return actions;
}

Actions Plan::end(std::uint64_t step) {
  require_open(step, "finish");
  is_open_ = false;
  Actions actions;
  if (sync_ == Sync::off) return actions;
  std::vector<std::size_t> missing;
  for (std::size_t parameter = 0; parameter < names_.size(); ++parameter) {
    if (is_missing(parameter)) missing.push_back(parameter);
  }
  for (const std::size_t parameter : missing) {
    // A gradient that no step of a static graph uses is zero since the window began, and may be on its way.
    if (!queue_.is_taken_with(parameter)) actions.emplace_back(Zero{parameter});
  }
  reduce_rest(actions);
  actions.emplace_back(Agree{.own = conclude(missing)});
  unlooked_.push_back({std::move(missing), graph_ ? graph_->miscount() : std::nullopt});
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
  Agree agree{.own = {.flags = {.canceller = 1 + options_.rank}}, .is_read = false};
  if (options_.unused == Unused::keep) agree.own.used.resize(names_.size());
  actions.emplace_back(std::move(agree));
  // The others look at the flags of the window before, too, and FindUnused may follow.
  if (!unlooked_.empty()) actions.emplace_back(Look{});
  return actions;
}

Actions Plan::check() {
  require_no_window("check");
  if (unlooked_.empty()) return {};
  return {Look{}};
}

Actions Plan::looked(const Agreement& of_all) {
  const bool is_of_last_window = options_.look_at == LookAt::end_of_next_window;
  Findings own = std::move(unlooked_.front());
  unlooked_.pop_front();
  if (of_all.flags.canceller > 0) return {TellCancelled{of_all.flags.canceller - 1, is_of_last_window}};
  switch (static_cast<Fault>(of_all.flags.fault)) {
    case Fault::none: break;
    case Fault::missing: return {FindUnused{std::move(own.missing), is_of_last_window}};
    case Fault::miscount: return {FindMiscounts{own.miscount, is_of_last_window}};
  }
  used_ = of_all.used;
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
  std::vector<std::size_t> order;
  std::vector<bool> is_in(names_.size());
  const auto take = [&](std::size_t parameter) {
    if (!is_in[parameter]) order.push_back(parameter);
    is_in[parameter] = true;
  };
  std::for_each(last_order_.rbegin(), last_order_.rend(), take);  // of several calls the last one counts
  std::reverse(order.begin(), order.end());
  for (std::size_t parameter = names_.size(); parameter-- > 0;) take(parameter);
  return order;
}

bool Plan::is_unused(std::size_t parameter) const {
  check_index(parameter, "is_unused");
  if (options_.unused != Unused::keep) {
    throw InvalidArgument(
        "which parameters no rank used is not known\nwhere: DistributedDataParallel::is_unused\n"
        "try:   the option unused = Unused::keep");
  }
  return !used_.empty() && used_[parameter] == 0;
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
  queue_.set_buckets(buckets);
  if (graph_ && graph_->is_learned()) queue_.await_only(graph_->used());
}

void Plan::begin_window(Actions& actions) {
  window_begun_ = true;
  first_step_ = step_;
  queue_.begin_window();
  if (options_.zero_gradients) {
    actions.emplace_back(ZeroAll{});
  } else if (graph_ && graph_->is_learned()) {
    const std::vector<bool> used = graph_->used();
    for (std::size_t parameter = 0; parameter < used.size(); ++parameter) {
      if (!used[parameter]) actions.emplace_back(Zero{parameter});
    }
  }
}

void Plan::reduce_rest(Actions& actions) {
  while (queue_.is_any_left()) actions.emplace_back(Reduce{queue_.take_next()});
}

// What this rank says of the window that it ends. A graph is learned from a window without a fault.
Agreement Plan::conclude(const std::vector<std::size_t>& missing) {
  Agreement own;
  Fault fault = Fault::none;
  if (options_.unused == Unused::error && !missing.empty()) fault = Fault::missing;
  if (graph_ && graph_->miscount()) fault = Fault::miscount;
  own.flags.fault = static_cast<std::int32_t>(fault);
  if (options_.unused == Unused::keep) {
    own.used.assign(names_.size(), 1);
    for (const std::size_t parameter : missing) own.used[parameter] = 0;
  }
  if (graph_ && !graph_->is_learned() && fault == Fault::none) {
    graph_->learn();
    queue_.await_only(graph_->used());
  }
  return own;
}

}  // namespace ddp::gradient_engine
