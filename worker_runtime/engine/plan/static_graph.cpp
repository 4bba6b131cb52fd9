#include "worker_runtime/engine/plan/static_graph.hpp"

namespace ddp::gradient_engine {

void StaticGraph::learn() {
  expected_ = found_;
  is_learned_ = true;
}

std::optional<Miscount> StaticGraph::miscount() const {
  if (!is_learned_) return {};
  for (std::size_t parameter = 0; parameter < found_.size(); ++parameter) {
    if (found_[parameter] != expected_[parameter]) return Miscount{parameter, expected_[parameter], found_[parameter]};
  }
  return {};
}

}  // namespace ddp::gradient_engine
