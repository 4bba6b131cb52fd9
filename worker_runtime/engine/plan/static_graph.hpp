// How often each parameter becomes ready in a step, in a program that does the same in every step.
//
// The counts of the first step are learned; every later step must have the same.
//
// Pure. Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace ddp::gradient_engine {

struct Miscount {
  std::size_t parameter = 0;
  std::int64_t expected = 0;  // calls of ready() in the step that was learned
  std::int64_t found = 0;     // in this one
};

class StaticGraph {
 public:
  explicit StaticGraph(std::size_t parameter_count) : expected_(parameter_count), found_(parameter_count) {}

  void begin_step() { found_.assign(found_.size(), 0); }

  // Counts a call of ready(). True for the last one that this parameter has in a step; always false before the counts
  // are learned.
  bool count(std::size_t parameter) { return ++found_[parameter] == expected_[parameter] && is_learned_; }

  // The counts of this step are right for every later one.
  void learn();
  // The graph changes: the next step is to be learned.
  void forget() { is_learned_ = false; }
  bool is_learned() const { return is_learned_; }

  // Whether a step uses the parameter. Requires is_learned().
  bool is_used(std::size_t parameter) const { return expected_[parameter] > 0; }

  // The first parameter whose count in this step is wrong. None before the counts are learned.
  std::optional<Miscount> miscount() const;

 private:
  std::vector<std::int64_t> expected_;  // by parameter
  std::vector<std::int64_t> found_;     // by parameter, in this step
  bool is_learned_ = false;
};

}  // namespace ddp::gradient_engine
