// The states of one training step: which all-reduce to launch, when, and which parameters got no gradient.
//
// Pure: "parameter p is ready" goes in, "launch the all-reduce of buckets [a, b)" comes out. No memory, no group, no
// clock, so every order of events is tested without a rank.
//
// A *window* is the micro-batches from one synchronised step to the next: steps with Sync::off, then one with Sync::on.
// A parameter is missing where no step of the whole window used it.
//
// Buckets are launched in the order of their numbers, each once per window, whatever the order of readiness: every rank
// launches the same sequence.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ddp/distributed_data_parallel.hpp"

namespace ddp::gradient_engine {

// Buckets [begin, end).
struct BucketRange {
  std::size_t begin = 0;
  std::size_t end = 0;

  friend bool operator==(const BucketRange& a, const BucketRange& b) = default;
};

class Reducer {
 public:
  // buckets: the parameters of each; together they hold each index below names.size() exactly once.
  Reducer(std::vector<std::string> names, const std::vector<std::vector<std::size_t>>& buckets);

  // Opens a step. True where it is the first of a window, so that gradients start anew. Throws GradientError while
  // another step is open.
  bool begin_step(Sync sync);

  // Takes in that one gradient is complete; the result is what to launch now. Throws InvalidArgument for a bad index,
  // GradientError for a parameter that is ready already or where no step is open; the step is then as it was before.
  BucketRange ready(std::size_t parameter);

  struct Rest {
    Sync sync = Sync::on;              // as the step was begun
    BucketRange launches;              // with the zeroed gradients of those that are missing
    std::vector<std::size_t> missing;  // parameters without a gradient in the whole window, in order
  };

  // Closes the step; with Sync::on the window too, with Sync::off there is nothing to launch and nothing missing.
  // Throws GradientError where no step is open.
  Rest finish();

  // Gives up on the open step and its window, after a collective failed.
  void abandon();

  bool is_open() const { return is_open_; }

  // Throws InvalidArgument, which names this call of DistributedDataParallel, unless there is such a parameter.
  void check_index(std::size_t parameter, const char* call) const;

 private:
  void check_open(const char* call) const;
  void begin_window();

  std::vector<std::string> names_;             // by parameter
  std::vector<std::size_t> bucket_of_;         // by parameter
  std::vector<std::size_t> parameter_counts_;  // by bucket

  bool is_open_ = false;
  bool window_begun_ = false;
  Sync sync_ = Sync::on;
  std::vector<bool> ready_;           // by parameter, in this step
  std::vector<bool> used_;            // by parameter, in this window
  std::vector<std::size_t> awaited_;  // by bucket: gradients to come in this step
  std::size_t next_launch_ = 0;       // bucket; all before it are launched
};

}  // namespace ddp::gradient_engine
