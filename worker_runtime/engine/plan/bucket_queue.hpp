// Which bucket is reduced next: buckets are reduced in the order of their numbers, each once its gradients are
// complete.
//
// Pure. Threads: one at a time.
#pragma once

#include <cstddef>
#include <vector>

namespace ddp::gradient_engine {

class BucketQueue {
 public:
  explicit BucketQueue(std::size_t parameter_count) : bucket_of_(parameter_count) {}

  // buckets: the parameters of each. All of them are awaited in every step.
  void set_buckets(const std::vector<std::vector<std::size_t>>& buckets);

  // From the next step on, steps await only the parameters for which this is true.
  void await_only(const std::vector<bool>& is_awaited);

  void begin_window() { next_ = 0; }
  void begin_step() { awaited_ = awaited_in_step_; }

  // An awaited parameter is complete. Once for each in a step.
  void complete(std::size_t parameter) { --awaited_[bucket_of_[parameter]]; }

  bool is_next_complete() const { return next_ < awaited_.size() && awaited_[next_] == 0; }
  bool is_any_left() const { return next_ < awaited_in_step_.size(); }
  std::size_t take_next() { return next_++; }  // requires is_any_left()

  bool is_taken_with(std::size_t parameter) const { return bucket_of_[parameter] < next_; }

 private:
  std::vector<std::size_t> bucket_of_;        // by parameter
  std::vector<std::size_t> awaited_in_step_;  // by bucket: gradients that a step awaits
  std::vector<std::size_t> awaited_;          // by bucket: gradients still to come in this step
  std::size_t next_ = 0;                      // bucket; all before it are taken
};

}  // namespace ddp::gradient_engine
