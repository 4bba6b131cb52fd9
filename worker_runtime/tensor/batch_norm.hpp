// The parts of a batch normalisation between its collectives. ddp/sync_batch_norm.hpp has the formulas.
//
// Moments are, of one rank, [mean of each channel, sum of squared distances from it of each channel, elements of a
// channel]. Statistics are [mean of each channel, inverse_std of each channel, elements of a channel on all ranks].
//
// C++17, for nvcc. Pure but for the memory given; any thread.
#pragma once

#include <cstddef>

#include "ddp/sync_batch_norm.hpp"

namespace ddp::tensor {

constexpr std::size_t batch_norm_numbers(std::size_t channels) { return 2 * channels + 1; }

struct BatchNormForward {
  BatchShape shape{};
  const float* x = nullptr;
  float* y = nullptr;  // may be x
  BatchNormParameters parameters{};
  double epsilon = 0;
  double momentum = 0;
  std::size_t rank = 0;
  std::size_t ranks = 1;
  double* moments = nullptr;     // of all ranks, one after the other
  double* statistics = nullptr;  // apart from the moments
};

struct BatchNormBackward {
  BatchShape shape{};
  const float* of_y = nullptr;
  const float* x = nullptr;
  const float* weight = nullptr;
  float* of_x = nullptr;  // may be of_y
  float* of_weight = nullptr;
  float* of_bias = nullptr;
  const double* statistics = nullptr;
  double* sums = nullptr;  // [of of_y, of of_y * (x - mean)], of each channel
};

// In host memory. Each `begin` comes before the collective, each `end` behind it.
void begin_batch_norm(const BatchNormForward& its);   // writes the moments of this rank
void end_batch_norm(const BatchNormForward& its);     // writes statistics, running statistics and y
void begin_batch_norm(const BatchNormBackward& its);  // writes this rank's sums, and adds to of_weight and of_bias
void end_batch_norm(const BatchNormBackward& its);    // writes of_x; sums are those of all ranks

}  // namespace ddp::tensor
