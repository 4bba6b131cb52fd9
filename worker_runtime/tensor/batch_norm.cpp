#include "worker_runtime/tensor/batch_norm.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ddp::tensor {
namespace {

// Calls add(channel, its first element) for each sample.
template <class Add>
void for_each_channel(const BatchShape& shape, Add add) {
  for (std::size_t sample = 0; sample < shape.batch; ++sample) {
    for (std::size_t channel = 0; channel < shape.channels; ++channel) {
      add(channel, (sample * shape.channels + channel) * shape.points);
    }
  }
}

// Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
struct Moments {
  double count = 0, mean = 0, distances = 0;

  void take_in(double its_count, double its_mean, double its_distances) {
    if (its_count == 0) return;
    const double all = count + its_count;
    const double difference = its_mean - mean;
    mean += difference * its_count / all;
    distances += its_distances + difference * difference * count * its_count / all;
    count = all;
  }
};

Moments of_all_ranks(const BatchNormForward& its, std::size_t channel) {
  Moments all;
  for (std::size_t rank = 0; rank < its.ranks; ++rank) {
    const double* const own = its.moments + rank * batch_norm_numbers(its.shape.channels);
    all.take_in(own[2 * its.shape.channels], own[channel], own[its.shape.channels + channel]);
  }
  return all;
}

}  // namespace

void begin_batch_norm(const BatchNormForward& its) {
  const BatchShape& shape = its.shape;
  const float* const x = its.x;
  double* const means = its.moments + its.rank * batch_norm_numbers(shape.channels);
  double* const distances = means + shape.channels;
  const auto count = static_cast<double>(shape.batch * shape.points);
  std::fill_n(means, 2 * shape.channels, 0.0);
  distances[shape.channels] = count;
  if (count == 0) return;
  for_each_channel(shape, [&](std::size_t channel, std::size_t at) {
    for (std::size_t i = at; i < at + shape.points; ++i) means[channel] += x[i];
  });
  for (std::size_t channel = 0; channel < shape.channels; ++channel) means[channel] /= count;
  for_each_channel(shape, [&](std::size_t channel, std::size_t at) {
    for (std::size_t i = at; i < at + shape.points; ++i) {
      const double distance = x[i] - means[channel];
      distances[channel] += distance * distance;
    }
  });
}

void end_batch_norm(const BatchNormForward& its) {
  const std::size_t channels = its.shape.channels;
  const BatchNormParameters& parameters = its.parameters;
  double* const means = its.statistics;
  double* const inverse_stds = means + channels;
  double& count = inverse_stds[channels];
  count = of_all_ranks(its, 0).count;
  for (std::size_t channel = 0; channel < channels; ++channel) {
    const Moments all = of_all_ranks(its, channel);
    const bool has_variance = all.count >= 2;
    means[channel] = all.mean;
    inverse_stds[channel] = has_variance ? 1 / std::sqrt(all.distances / all.count + its.epsilon)
                                         : std::numeric_limits<double>::quiet_NaN();
    const auto take_in = [&](float* running, double now) {
      if (running == nullptr || !has_variance) return;
      running[channel] = static_cast<float>((1 - its.momentum) * running[channel] + its.momentum * now);
    };
    take_in(parameters.running_mean, all.mean);
    take_in(parameters.running_variance, all.distances / (all.count - 1));
  }
  for_each_channel(its.shape, [&](std::size_t channel, std::size_t at) {
    // In double: a mean that is rounded to float is too far off if it is large and the variance is small.
    const double mean = means[channel];
    const double scale = (parameters.weight != nullptr ? parameters.weight[channel] : 1) * inverse_stds[channel];
    const double shift = parameters.bias != nullptr ? parameters.bias[channel] : 0;
    for (std::size_t i = at; i < at + its.shape.points; ++i) {
      its.y[i] = static_cast<float>((its.x[i] - mean) * scale + shift);
    }
  });
}

void begin_batch_norm(const BatchNormBackward& its) {
  const std::size_t channels = its.shape.channels;
  const double* const means = its.statistics;
  const double* const inverse_stds = means + channels;
  std::fill_n(its.sums, 2 * channels, 0.0);
  for_each_channel(its.shape, [&](std::size_t channel, std::size_t at) {
    for (std::size_t i = at; i < at + its.shape.points; ++i) {
      its.sums[channel] += its.of_y[i];
      its.sums[channels + channel] += its.of_y[i] * (its.x[i] - means[channel]);
    }
  });
  for (std::size_t channel = 0; channel < channels; ++channel) {
    if (its.of_bias != nullptr) its.of_bias[channel] += static_cast<float>(its.sums[channel]);
    if (its.of_weight != nullptr) {
      its.of_weight[channel] += static_cast<float>(its.sums[channels + channel] * inverse_stds[channel]);
    }
  }
}

void end_batch_norm(const BatchNormBackward& its) {
  const std::size_t channels = its.shape.channels;
  const double* const means = its.statistics;
  const double* const inverse_stds = means + channels;
  const double count = inverse_stds[channels];
  for_each_channel(its.shape, [&](std::size_t channel, std::size_t at) {
    const double inverse_std = inverse_stds[channel];
    const double scale = inverse_std * (its.weight != nullptr ? its.weight[channel] : 1);
    const double mean_gradient = its.sums[channel] / count;
    const double slope = inverse_std * inverse_std * its.sums[channels + channel] / count;
    for (std::size_t i = at; i < at + its.shape.points; ++i) {
      const double distance = its.x[i] - means[channel];
      its.of_x[i] = static_cast<float>((its.of_y[i] - mean_gradient - distance * slope) * scale);
    }
  });
}

}  // namespace ddp::tensor
