#include "ddp/sync_batch_norm.hpp"

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "ddp/error.hpp"

namespace ddp {
namespace {

// The sums over the elements of each channel of this rank.
template <class Add>
void for_each_channel(const BatchShape& shape, Add add) {
  for (std::size_t sample = 0; sample < shape.batch; ++sample) {
    for (std::size_t channel = 0; channel < shape.channels; ++channel) {
      add(channel, (sample * shape.channels + channel) * shape.points);
    }
  }
}

// Of a channel: means and squared distances from them, [mean of each channel, distances of each channel, count].
std::vector<double> own_moments(const BatchShape& shape, const float* x) {
  const std::size_t channels = shape.channels;
  const auto count = static_cast<double>(shape.batch * shape.points);
  std::vector<double> moments(2 * channels + 1);
  moments.back() = count;
  if (count == 0) return moments;
  for_each_channel(shape, [&](std::size_t channel, std::size_t at) {
    for (std::size_t i = at; i < at + shape.points; ++i) moments[channel] += x[i];
  });
  for (std::size_t channel = 0; channel < channels; ++channel) moments[channel] /= count;
  for_each_channel(shape, [&](std::size_t channel, std::size_t at) {
    double& distances = moments[channels + channel];
    for (std::size_t i = at; i < at + shape.points; ++i) {
      const double distance = x[i] - moments[channel];
      distances += distance * distance;
    }
  });
  return moments;
}

struct Moments {
  double count = 0;
  std::vector<double> mean, distances;
};

// Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
Moments combined(const std::vector<double>& of_all, std::size_t ranks, std::size_t channels) {
  Moments all{0, std::vector<double>(channels), std::vector<double>(channels)};
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const double* const its = of_all.data() + rank * (2 * channels + 1);
    const double its_count = its[2 * channels];
    if (its_count == 0) continue;
    const double count = all.count + its_count;
    for (std::size_t channel = 0; channel < channels; ++channel) {
      const double difference = its[channel] - all.mean[channel];
      all.mean[channel] += difference * its_count / count;
      all.distances[channel] += its[channels + channel] + difference * difference * all.count * its_count / count;
    }
    all.count = count;
  }
  return all;
}

}  // namespace

BatchStatistics DDP_ABI::sync_batch_norm_forward(ProcessGroup& group, const BatchShape& shape, const float* x,
                                                 const BatchNormParameters& parameters, float* y,
                                                 const BatchNormOptions& options) {
  const std::size_t channels = shape.channels;
  const std::vector<double> own = own_moments(shape, x);
  std::vector<double> of_all(own.size() * static_cast<std::size_t>(group.size()));
  group.all_gather(own, of_all, options.collective);
  const Moments all = combined(of_all, static_cast<std::size_t>(group.size()), channels);
  if (all.count < 2) {
    throw InvalidArgument("a batch of " + std::to_string(static_cast<int>(all.count)) +
                          " elements of a channel on all ranks together has no variance\n"
                          "where: sync_batch_norm_forward\ntry:   larger batches, or the running statistics");
  }
  BatchStatistics statistics{all.mean, std::vector<double>(channels), static_cast<std::uint64_t>(all.count)};
  std::vector<double> scale(channels), shift(channels);
  for (std::size_t channel = 0; channel < channels; ++channel) {
    const double variance = all.distances[channel] / all.count;
    const double inverse_std = 1 / std::sqrt(variance + options.epsilon);
    statistics.inverse_std[channel] = inverse_std;
    const double weight = parameters.weight != nullptr ? parameters.weight[channel] : 1;
    scale[channel] = weight * inverse_std;
    shift[channel] = parameters.bias != nullptr ? parameters.bias[channel] : 0;
    const auto take_in = [&](float* running, double now) {
      if (running == nullptr) return;
      running[channel] = static_cast<float>((1 - options.momentum) * running[channel] + options.momentum * now);
    };
    take_in(parameters.running_mean, all.mean[channel]);
    take_in(parameters.running_variance, all.distances[channel] / (all.count - 1));
  }
  for_each_channel(shape, [&](std::size_t channel, std::size_t at) {
    // In double: a mean that is rounded to float is too far off if it is large and the variance is small.
    for (std::size_t i = at; i < at + shape.points; ++i) {
      y[i] = static_cast<float>((x[i] - all.mean[channel]) * scale[channel] + shift[channel]);
    }
  });
  return statistics;
}

void DDP_ABI::sync_batch_norm_backward(ProcessGroup& group, const BatchShape& shape, const float* of_y, const float* x,
                                       const BatchStatistics& statistics, const float* weight, float* of_x,
                                       float* of_weight, float* of_bias, CollectiveOptions options) {
  const std::size_t channels = shape.channels;
  if (statistics.mean.size() != channels || statistics.inverse_std.size() != channels || statistics.count == 0) {
    throw InvalidArgument("statistics of " + std::to_string(statistics.mean.size()) + " channels for a batch of " +
                          std::to_string(channels) +
                          "\nwhere: sync_batch_norm_backward\ntry:   those that the forward of this batch returned");
  }
  std::vector<double> sums(2 * channels);  // of the gradients; of the gradients times (x - mean)
  for_each_channel(shape, [&](std::size_t channel, std::size_t at) {
    for (std::size_t i = at; i < at + shape.points; ++i) {
      sums[channel] += of_y[i];
      sums[channels + channel] += of_y[i] * (x[i] - statistics.mean[channel]);
    }
  });
  for (std::size_t channel = 0; channel < channels; ++channel) {
    if (of_bias != nullptr) of_bias[channel] += static_cast<float>(sums[channel]);
    if (of_weight != nullptr) {
      of_weight[channel] += static_cast<float>(sums[channels + channel] * statistics.inverse_std[channel]);
    }
  }
  group.all_reduce(sums, ReduceOp::sum, options);
  const auto count = static_cast<double>(statistics.count);
  for_each_channel(shape, [&](std::size_t channel, std::size_t at) {
    const double inverse_std = statistics.inverse_std[channel];
    const double scale = inverse_std * (weight != nullptr ? weight[channel] : 1);
    const double mean_gradient = sums[channel] / count;
    const double slope = inverse_std * inverse_std * sums[channels + channel] / count;
    for (std::size_t i = at; i < at + shape.points; ++i) {
      const double distance = x[i] - statistics.mean[channel];
      of_x[i] = static_cast<float>((of_y[i] - mean_gradient - distance * slope) * scale);
    }
  });
}

}  // namespace ddp
