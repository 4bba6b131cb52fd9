// Metrics over the samples of all ranks. Each rank adds up what it sees, without a collective; read() is one.
//
//   ddp::Mean accuracy;
//   for (const auto& batch : batches) accuracy.add(share_of_right_answers(batch), batch.size());
//   const double result = accuracy.read(world);  // the same on all ranks: each sample counts alike
//
// Numbers are added up in double. Threads: one at a time for each metric.
// The group has to take host memory, as in ddp/collectives.hpp.
#pragma once

#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "ddp/collectives.hpp"
#include "ddp/error.hpp"
#include "ddp/process_group.hpp"

namespace ddp {
inline namespace DDP_ABI {

// The mean over samples, which may be unequally many on each rank and in each batch. A mean of the ranks' means would
// give the samples of a smaller batch more weight.
class Mean {
 public:
  // `mean` over `samples` samples, which need not be a whole number (a weight). With 0 samples `mean` is not looked at,
  // so it may be the NaN of an empty batch. Throws InvalidArgument for samples that are negative or not finite.
  void add(double mean, double samples = 1) {
    if (!(samples >= 0) || !std::isfinite(samples)) {
      throw InvalidArgument("a mean over " + std::to_string(samples) +
                            " samples\nwhere: Mean::add\ntry:   a finite number of 0 or above");
    }
    if (samples == 0) return;
    sum_ += mean * samples;
    samples_ += samples;
  }

  // Collective: the mean over the samples of all ranks; NaN if there are none on any. Forgets nothing.
  double read(ProcessGroup& group, CollectiveOptions options = {}) const {
    std::array<double, 2> sums{sum_, samples_};
    all_reduce(group, sums, ReduceOp::sum, options);
    return sums[1] == 0 ? std::numeric_limits<double>::quiet_NaN() : sums[0] / sums[1];
  }

  void reset() { *this = {}; }  // forgets all that was added

 private:
  double sum_ = 0;
  double samples_ = 0;
};

// The sum over all ranks; 0 if nothing was added on any. Whole numbers are exact up to 2^53.
class Sum {
 public:
  void add(double value) { sum_ += value; }  // adds on this rank

  // Collective. Forgets nothing.
  double read(ProcessGroup& group, CollectiveOptions options = {}) const {
    return all_reduce(group, sum_, ReduceOp::sum, options);
  }

  void reset() { sum_ = 0; }  // forgets all that was added

 private:
  double sum_ = 0;
};

}  // namespace DDP_ABI
}  // namespace ddp
