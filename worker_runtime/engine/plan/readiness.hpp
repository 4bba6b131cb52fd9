// Which gradients of this rank are complete, which are missing, and which buckets they fill.
//
// Knows the parameters one by one: those that became ready, how often a static graph uses them, those that are frozen.
// A parameter is missing if no step of the window used it and it is not frozen.
//
// Pure. Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "worker_runtime/engine/plan/bucket_queue.hpp"
#include "worker_runtime/engine/plan/frozen_parameters.hpp"
#include "worker_runtime/engine/plan/static_graph.hpp"

namespace ddp::gradient_engine {

class Readiness {
 public:
  Readiness(std::size_t parameter_count, bool is_static_graph);

  // Between windows.
  void set_buckets(const std::vector<std::vector<std::size_t>>& buckets);
  void set_frozen(std::size_t parameter, bool is_frozen);

  void begin_window();
  void begin_step();

  bool is_frozen(std::size_t parameter) const { return frozen_ && frozen_->is_frozen(parameter); }
  // Whether the parameter must not become ready any more in this step.
  bool is_complete(std::size_t parameter) const { return ready_in_[parameter] == step_ && !graph_; }

  // The parameter was used; its bucket does not count that in this step.
  void use(std::size_t parameter) { ready_in_[parameter] = step_; }
  // The parameter was used, and its bucket counts it.
  void complete(std::size_t parameter) {
    use(parameter);
    order_.push_back(parameter);
    if (!graph_ || graph_->count(parameter)) queue_.complete(parameter);
  }

  // The window ends with this step. It is_right if this rank found no fault in it: then a static graph is learned.
  void end_window(bool is_right);

  std::vector<std::size_t> missing() const;
  // The parameters whose gradients are zero from the start of a window on: those that are frozen or that a static graph
  // never uses.
  std::vector<std::size_t> idle_parameters() const;
  std::optional<Miscount> miscount() const { return graph_ ? graph_->miscount() : std::nullopt; }

  // All parameters: first those of the last step that ended a window, in the order in which they became ready, of
  // several uses the last one; then the others, the last first.
  std::vector<std::size_t> ready_order() const;

  const std::optional<FrozenParameters>& frozen() const { return frozen_; }
  // All ranks have frozen what is frozen here. Returns the buckets that were idle in this window and are no more.
  std::vector<std::size_t> agree_on_frozen();

  BucketQueue& queue() { return queue_; }

 private:
  void update_awaited();

  BucketQueue queue_;
  std::optional<StaticGraph> graph_;        // if it is static
  std::optional<FrozenParameters> frozen_;  // if any ever was
  std::uint64_t step_ = 0;
  std::uint64_t first_step_ = 0;         // of this window
  std::vector<std::uint64_t> ready_in_;  // by parameter: the last step that used it; 0 for none
  std::vector<std::size_t> order_;       // in which they were completed in this step
  std::vector<std::size_t> last_order_;
};

}  // namespace ddp::gradient_engine
