#include "worker_runtime/engine/plan/readiness.hpp"

#include <algorithm>

namespace ddp::gradient_engine {

Readiness::Readiness(std::size_t parameter_count, bool is_static_graph)
    : queue_(parameter_count), ready_in_(parameter_count) {
  if (is_static_graph) graph_.emplace(parameter_count);
}

void Readiness::set_buckets(const std::vector<std::vector<std::size_t>>& buckets) {
  queue_.set_buckets(buckets);
  if (frozen_) queue_.leave_out(frozen_->agreed());
  update_awaited();
}

void Readiness::set_frozen(std::size_t parameter, bool is_frozen) {
  if (!frozen_) frozen_.emplace(ready_in_.size());
  if (frozen_->is_frozen(parameter) == is_frozen) return;
  frozen_->set(parameter, is_frozen);
  if (graph_) graph_->forget();
  update_awaited();
}

void Readiness::begin_window() {
  first_step_ = step_ + 1;
  queue_.begin_window();
}

void Readiness::begin_step() {
  ++step_;
  queue_.begin_step();
  if (graph_) graph_->begin_step();
  order_.clear();
}

void Readiness::end_window(bool is_right) {
  last_order_ = order_;
  if (!graph_ || graph_->is_learned() || !is_right) return;
  graph_->learn();
  update_awaited();
}

std::vector<std::size_t> Readiness::missing() const {
  std::vector<std::size_t> missing;
  for (std::size_t parameter = 0; parameter < ready_in_.size(); ++parameter) {
    if (ready_in_[parameter] < first_step_ && !is_frozen(parameter)) missing.push_back(parameter);
  }
  return missing;
}

std::vector<std::size_t> Readiness::idle_parameters() const {
  std::vector<std::size_t> idle;
  if (!graph_ && !frozen_) return idle;
  for (std::size_t parameter = 0; parameter < ready_in_.size(); ++parameter) {
    const bool is_never_used = graph_ && graph_->is_learned() && !graph_->is_used(parameter);
    if (is_frozen(parameter) || is_never_used) idle.push_back(parameter);
  }
  return idle;
}

std::vector<std::size_t> Readiness::ready_order() const {
  std::vector<std::size_t> order;
  std::vector<bool> is_in(ready_in_.size());
  const auto take = [&](std::size_t parameter) {
    if (!is_in[parameter]) order.push_back(parameter);
    is_in[parameter] = true;
  };
  std::for_each(last_order_.rbegin(), last_order_.rend(), take);
  std::reverse(order.begin(), order.end());
  for (std::size_t parameter = ready_in_.size(); parameter-- > 0;) take(parameter);
  return order;
}

std::vector<std::size_t> Readiness::agree_on_frozen() {
  const std::vector<std::uint8_t> were_idle = queue_.idle();
  frozen_->agree();
  queue_.leave_out(frozen_->agreed());
  std::vector<std::size_t> needed_again;
  for (std::size_t bucket = 0; bucket < were_idle.size(); ++bucket) {
    const bool is_idle = !queue_.idle().empty() && queue_.idle()[bucket] != 0;
    if (were_idle[bucket] != 0 && !is_idle) needed_again.push_back(bucket);
  }
  return needed_again;
}

// All but the idle parameters are awaited.
void Readiness::update_awaited() {
  if (!graph_ && !frozen_) return;
  std::vector<bool> awaited(ready_in_.size(), true);
  for (const std::size_t parameter : idle_parameters()) awaited[parameter] = false;
  queue_.await_only(awaited);
}

}  // namespace ddp::gradient_engine
