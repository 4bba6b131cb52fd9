// The learning rate for a number of ranks: scaled with the samples of a step, warmed up, and right again after the
// number of ranks has changed.
//
//   ddp::LearningRateOptions options;
//   options.base_rate = 0.1;                         // tuned for ...
//   options.base_batch = 256;                        // ... so many samples in a step
//   options.warmup_samples = 5 * data_set_size;
//   ddp::LearningRate rate(options);
//   if (resumed) rate.restore(state_from_the_checkpoint);
//   optimizer.set_rate(decay(epoch) * rate.next(world.size() * batch_size));   // before each step
//
// The batch is that of all ranks together, times the micro-batches that are accumulated. So a job that keeps it when
// its number of ranks changes keeps its rate, too. Progress is counted in samples, because the steps of an epoch change
// with the number of ranks.
//
// Pure but for the state. Takes no collective: every rank gives the same numbers. Threads: one at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "ddp/error.hpp"
#include "ddp/export.hpp"

namespace ddp {
inline namespace DDP_ABI {

// How the rate grows with the batch.
enum class RateScaling : std::uint8_t {
  none,         // the rate stays base_rate
  linear,       // for SGD. Source: Goyal et al., "Accurate, Large Minibatch SGD", arXiv 1706.02677, section 2.1
  square_root,  // keeps the variance of a step. Source: Krizhevsky, "One weird trick", arXiv 1404.5997
};

// Options of a LearningRate.
struct LearningRateOptions {
  double base_rate = 0;                       // > 0, finite
  std::uint64_t base_batch = 0;               // samples of a step for which base_rate was tuned; > 0
  RateScaling scaling = RateScaling::linear;  // of base_rate, for other batches than base_batch
  std::uint64_t warmup_samples = 0;     // from the start on; within them the rate goes linearly to that of the batch
  std::optional<double> warmup_rate{};  // where it begins; >= 0, finite. Empty: base_rate, as in Goyal et al., 2.2
  std::uint64_t change_samples = 0;     // after a change of the batch; within them the rate goes linearly to the new
};

// A plain struct: it can go into a checkpoint, or into ElasticState::add_struct().
struct LearningRateState {
  std::uint64_t samples = 0;     // of all steps so far
  std::uint64_t batch = 0;       // of the last step; 0 before the first
  std::uint64_t changed_at = 0;  // samples before the last change of the batch
  double rate_before = 0;        // where the change began; 0: there was none
};

// Gives the rate of each step; an example is at the top of this file.
class LearningRate {
 public:
  // Throws InvalidArgument where the options are out of range.
  explicit LearningRate(const LearningRateOptions& options) : options_(options) {
    const auto is_rate = [](double rate) { return std::isfinite(rate) && rate >= 0; };
    if (!is_rate(options_.base_rate) || options_.base_rate == 0) {
      refuse("a base_rate of " + std::to_string(options_.base_rate), "a finite rate above 0");
    }
    if (options_.base_batch == 0) refuse("a base_batch of 0", "the samples of a step that base_rate was tuned for");
    if (options_.warmup_rate && !is_rate(*options_.warmup_rate)) {
      refuse("a warmup_rate of " + std::to_string(*options_.warmup_rate), "a finite rate of 0 or above");
    }
  }

  // The rate for a batch after warm-up: base_rate * (batch / base_batch), or the square root of that quotient.
  double scaled(std::uint64_t batch) const {
    const double quotient = static_cast<double>(batch) / static_cast<double>(options_.base_batch);
    switch (options_.scaling) {
      case RateScaling::none: return options_.base_rate;
      case RateScaling::linear: return options_.base_rate * quotient;
      case RateScaling::square_root: return options_.base_rate * std::sqrt(quotient);
    }
    return options_.base_rate;
  }

  // The rate for the next step, which takes `batch` samples of all ranks together (> 0, else InvalidArgument). Counts
  // them, so it is called once for each step of the optimizer.
  double next(std::uint64_t batch) {
    if (batch == 0) refuse("a batch of 0 samples", "the samples of a step of all ranks together");
    if (state_.batch != 0 && batch != state_.batch) {
      state_.rate_before = rate();
      state_.changed_at = state_.samples;
    }
    state_.batch = batch;
    const double result = rate();
    state_.samples += batch;
    return result;
  }

  LearningRateState state() const { return state_; }                // for a checkpoint; the same on all ranks
  void restore(const LearningRateState& state) { state_ = state; }  // goes on from a state, with these options

 private:
  [[noreturn]] static void refuse(const std::string& what, const std::string& advice) {
    throw InvalidArgument(what + "\nwhere: LearningRate\ntry:   " + advice);
  }

  static double between(double from, double to, std::uint64_t done, std::uint64_t of) {
    return done >= of ? to : from + (to - from) * (static_cast<double>(done) / static_cast<double>(of));
  }

  // At the state's samples, for its batch.
  double rate() const {
    const double start = options_.warmup_rate.value_or(options_.base_rate);
    const double goal = between(start, scaled(state_.batch), state_.samples, options_.warmup_samples);
    if (state_.rate_before == 0) return goal;
    return between(state_.rate_before, goal, state_.samples - state_.changed_at, options_.change_samples);
  }

  LearningRateOptions options_;
  LearningRateState state_;
};

}  // namespace DDP_ABI
}  // namespace ddp
