// Which bucket is reduced next: buckets are reduced in the order of their numbers, each once its gradients are
// complete. A bucket that is idle, because all of its parameters are frozen, is left out.
//
// Pure. Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddp::gradient_engine {

class BucketQueue {
 public:
  explicit BucketQueue(std::size_t parameter_count) : bucket_of_(parameter_count) {}

  // buckets: the parameters of each. All of them are awaited in every step.
  void set_buckets(const std::vector<std::vector<std::size_t>>& buckets);

  // From the next step on, steps await only the parameters for which this is true.
  void await_only(const std::vector<bool>& is_awaited);

  // From the next window on, buckets are idle if this is true for all of their parameters.
  void leave_out(const std::vector<bool>& is_idle);
  // By bucket, as the last leave_out() made it; empty for none.
  const std::vector<std::uint8_t>& idle() const { return is_idle_; }

  void begin_window() {
    next_ = 0;
    pass_idle();
  }
  void begin_step() { awaited_ = awaited_in_step_; }

  // An awaited parameter is complete. Once for each in a step.
  void complete(std::size_t parameter) { --awaited_[bucket_of_[parameter]]; }

  bool is_next_complete() const { return next_ < awaited_.size() && awaited_[next_] == 0; }
  bool is_any_left() const { return next_ < awaited_in_step_.size(); }
  std::size_t take_next() {  // requires is_any_left()
    const std::size_t bucket = next_++;
    pass_idle();
    return bucket;
  }

  bool is_taken_with(std::size_t parameter) const {
    const std::size_t bucket = bucket_of_[parameter];
    return bucket < next_ && (is_idle_.empty() || is_idle_[bucket] == 0);
  }

 private:
  void pass_idle() {
    while (next_ < is_idle_.size() && is_idle_[next_] != 0) ++next_;
  }

  std::vector<std::size_t> bucket_of_;        // by parameter
  std::vector<std::size_t> awaited_in_step_;  // by bucket: gradients that a step awaits
  std::vector<std::size_t> awaited_;          // by bucket: gradients still to come in this step
  std::vector<std::uint8_t> is_idle_;         // by bucket; empty if none is
  std::size_t next_ = 0;                      // bucket; all before it are taken or idle
};

}  // namespace ddp::gradient_engine
