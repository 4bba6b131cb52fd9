// Compiled with -fmad=false: what is multiplied and added is rounded twice, as on the host.
//
// A batch is read in one of two ways. With many points, a block takes a part of the samples of one channel. With few,
// the batch is a matrix of batch * (channels * points), and each thread goes down a few neighbouring columns of it:
// then neighbouring threads still read neighbouring memory.
#include "worker_runtime/backends/nccl/batch_norm_kernels.hpp"

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "worker_runtime/backends/nccl/kernel_launch.cuh"

namespace ddp::nccl_backend::kernels {

namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kWarps = kThreads / kWarp;
constexpr unsigned kVectorWidth = 4;          // elements of 16 bytes
constexpr std::size_t kPointsOfChannel = 32;  // from so many on, blocks take channels
constexpr std::size_t kBlocks = 2112;         // wanted: 16 for each multiprocessor of an H100

// What blocks of columns are for.
struct Purpose {
  std::size_t blocks;    // wanted
  std::size_t rows_min;  // of a thread
};
// 3 for each multiprocessor run at once. No more, because each writes sums for every column: as much as 8 rows.
constexpr Purpose kToSum{396, 32};
constexpr Purpose kToWrite{kBlocks, 8};

// How a batch is cut into blocks.
struct Cut {
  std::size_t batch = 0;
  std::size_t channels = 0;
  std::size_t points = 0;
  bool is_by_channel = false;
  unsigned width = 1;   // elements of a vector
  unsigned slices = 1;  // blocks for each channel, or for each tile of columns
  unsigned across = 1;  // threads of a block beside each other, in a tile of columns: a power of two
  unsigned blocks = 0;

  __host__ __device__ std::size_t columns() const { return channels * points; }
};

std::size_t divided(std::size_t number, std::size_t by) { return (number + by - 1) / by; }

Cut cut(const BatchShape& shape, bool is_aligned, const Purpose& purpose) {
  Cut its{shape.batch, shape.channels, shape.points};
  its.is_by_channel = shape.points >= kPointsOfChannel;
  const std::size_t run = its.is_by_channel ? its.points : its.columns();
  its.width = is_aligned && run % kVectorWidth == 0 ? kVectorWidth : 1;
  if (its.is_by_channel) {
    const std::size_t vectors = its.batch * (its.points / its.width);
    const std::size_t wanted = divided(kBlocks, its.channels), most = divided(vectors, kThreads * 4);
    its.slices = static_cast<unsigned>(std::max<std::size_t>(1, std::min(wanted, most)));
    its.blocks = static_cast<unsigned>(its.channels) * its.slices;
    return its;
  }
  const std::size_t vectors = its.columns() / its.width;
  while (its.across < kThreads && its.across < vectors) its.across *= 2;
  const std::size_t tiles = divided(vectors, its.across);
  const std::size_t wanted = divided(purpose.blocks, tiles);
  const std::size_t most = divided(its.batch, kThreads / its.across * purpose.rows_min);
  its.slices = static_cast<unsigned>(std::max<std::size_t>(1, std::min(wanted, most)));
  its.blocks = static_cast<unsigned>(tiles) * its.slices;
  return its;
}

bool are_aligned(std::initializer_list<const void*> arrays) {
  std::uintptr_t all = 0;
  for (const void* each : arrays) all |= reinterpret_cast<std::uintptr_t>(each);
  return all % (kVectorWidth * sizeof(float)) == 0;
}

// The vectors of a thread, one after the other.
struct Places {
  std::size_t first_channel;  // of a vector's elements, all of which are of the same channel if is_by_channel
  std::size_t at;             // the first element of the next vector
  std::size_t left;           // vectors
  std::size_t step;           // in elements
  std::size_t within, within_step, within_end;  // vectors of the sample
  std::size_t wrap;                             // from the end of one sample's channel to its start in the next

  __device__ void advance() {
    --left;
    at += step;
    within += within_step;
    if (within < within_end) return;
    within -= within_end;
    at += wrap;
  }
};

__device__ Places places_of(const Cut& its, unsigned width) {
  const unsigned part = blockIdx.x / its.slices, slice = blockIdx.x % its.slices;
  Places places{};
  if (its.is_by_channel) {
    const std::size_t per_sample = its.points / width, all = its.batch * per_sample;
    const std::size_t first = static_cast<std::size_t>(slice) * kThreads + threadIdx.x;
    const std::size_t step = static_cast<std::size_t>(its.slices) * kThreads;
    places.first_channel = part;
    places.within = first % per_sample;
    places.within_step = step % per_sample;
    places.within_end = per_sample;
    places.wrap = its.columns() - its.points;
    places.at = first / per_sample * its.columns() + part * its.points + places.within * width;
    places.step = step / per_sample * its.columns() + places.within_step * width;
    places.left = first < all ? (all - first + step - 1) / step : 0;
    return places;
  }
  const unsigned down = kThreads / its.across;
  const std::size_t column = (static_cast<std::size_t>(part) * its.across + threadIdx.x % its.across) * width;
  const std::size_t row = static_cast<std::size_t>(slice) * down + threadIdx.x / its.across;
  const std::size_t step = static_cast<std::size_t>(its.slices) * down;
  places.first_channel = column / its.points;
  places.within_end = 1;
  places.at = row * its.columns() + column;
  places.step = step * its.columns();
  places.left = column < its.columns() && row < its.batch ? (its.batch - row + step - 1) / step : 0;
  return places;
}

template <unsigned kWidth>
__device__ void load(const float* from, float (&to)[kWidth]) {
  if constexpr (kWidth == kVectorWidth) {
    const float4 loaded = *reinterpret_cast<const float4*>(from);
    to[0] = loaded.x, to[1] = loaded.y, to[2] = loaded.z, to[3] = loaded.w;
  } else {
    to[0] = *from;
  }
}

template <unsigned kWidth>
__device__ void store(float* to, const float (&from)[kWidth]) {
  if constexpr (kWidth == kVectorWidth) {
    *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
  } else {
    *to = from[0];
  }
}

// Calls visit(place, elements of each array) for each vector of the thread. Several are loaded before the first is
// used.
template <unsigned kWidth, unsigned kArrays, class Visit>
__device__ void visit_each(Places places, const float* const (&arrays)[kArrays], const Visit& visit) {
  constexpr unsigned kAtOnce = kWidth == 1 ? 8 : 4;
  while (places.left > 0) {
    const auto now = static_cast<unsigned>(places.left < kAtOnce ? places.left : kAtOnce);
    std::size_t at[kAtOnce];
    float loaded[kAtOnce][kArrays][kWidth];
#pragma unroll
    for (unsigned k = 0; k < kAtOnce; ++k) {
      if (k >= now) break;
      at[k] = places.at;
#pragma unroll
      for (unsigned i = 0; i < kArrays; ++i) load(arrays[i] + at[k], loaded[k][i]);
      places.advance();
    }
#pragma unroll
    for (unsigned k = 0; k < kAtOnce; ++k) {
      if (k >= now) break;
      visit(at[k], loaded[k]);
    }
  }
}

// Two sums of one channel, or of one column.
struct Pair {
  double first, second;
  __device__ void add(const Pair& other) { first += other.first, second += other.second; }
};

// Over the threads of a warp, in one order; the result is every thread's.
__device__ Pair sum_of_warp(Pair pair) {
#pragma unroll
  for (unsigned half = kWarp / 2; half > 0; half /= 2) {
    pair.add({__shfl_xor_sync(0xffffffff, pair.first, half), __shfl_xor_sync(0xffffffff, pair.second, half)});
  }
  return pair;
}

// The first element of a channel. Distances from it are small enough that their squares may be added at once: if it is
// far from the mean, the variance is large for it.
__device__ double pivot_of(const Cut& its, const float* x, std::size_t channel) { return x[channel * its.points]; }

// Adds up what add(pair, channel, values) makes of each element. By channel, partials are [channel, slice]; else
// [slice, column].
template <unsigned kWidth, unsigned kArrays, class Constant, class Add>
__device__ void sum_each(const Cut& its, const float* const (&arrays)[kArrays], Pair* partials,
                         const Constant& constant, const Add& add) {
  const Places places = places_of(its, kWidth);
  Pair sums[kWidth] = {};
  double constants[kWidth];
  if (places.left > 0) {
#pragma unroll
    for (unsigned i = 0; i < kWidth; ++i) {
      constants[i] = constant(its.is_by_channel ? places.first_channel : (places.at % its.columns() + i) / its.points);
    }
  }
  visit_each<kWidth, kArrays>(places, arrays, [&](std::size_t, const float(&values)[kArrays][kWidth]) {
#pragma unroll
    for (unsigned i = 0; i < kWidth; ++i) {
      float of_element[kArrays];
#pragma unroll
      for (unsigned k = 0; k < kArrays; ++k) of_element[k] = values[k][i];
      add(sums[i], constants[i], of_element);
    }
  });
  if (its.is_by_channel) {
    __shared__ Pair of_warps[kWarps];
    for (unsigned i = 1; i < kWidth; ++i) sums[0].add(sums[i]);
    const Pair of_warp = sum_of_warp(sums[0]);
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = of_warp;
    __syncthreads();
    if (threadIdx.x > 0) return;
    Pair all = of_warps[0];
    for (unsigned i = 1; i < kWarps; ++i) all.add(of_warps[i]);
    partials[blockIdx.x] = all;
    return;
  }
  __shared__ Pair of_threads[kThreads][kWidth];
  for (unsigned i = 0; i < kWidth; ++i) of_threads[threadIdx.x][i] = sums[i];
  __syncthreads();
  for (unsigned half = kThreads / 2; half >= its.across; half /= 2) {
    if (threadIdx.x < half) {
      for (unsigned i = 0; i < kWidth; ++i) of_threads[threadIdx.x][i].add(of_threads[threadIdx.x + half][i]);
    }
    __syncthreads();
  }
  const unsigned tile = blockIdx.x / its.slices, slice = blockIdx.x % its.slices;
  const std::size_t column = (static_cast<std::size_t>(tile) * its.across + threadIdx.x) * kWidth;
  if (threadIdx.x >= its.across || column >= its.columns()) return;
  for (unsigned i = 0; i < kWidth; ++i) partials[slice * its.columns() + column + i] = of_threads[threadIdx.x][i];
}

// Of a channel, over the threads of a warp.
__device__ Pair sum_of_partials(const Cut& its, const Pair* partials, std::size_t channel) {
  const unsigned lane = threadIdx.x % kWarp;
  Pair sum{};
  if (its.is_by_channel) {
    for (unsigned slice = lane; slice < its.slices; slice += kWarp) sum.add(partials[channel * its.slices + slice]);
  } else {
    const std::size_t points = its.points;
    for (std::size_t i = lane; i < its.slices * points; i += kWarp) {
      sum.add(partials[i / points * its.columns() + channel * points + i % points]);
    }
  }
  return sum_of_warp(sum);
}

template <unsigned kWidth>
__global__ void moments_kernel(const Cut its, const float* x, Pair* partials) {
  const float* const arrays[] = {x};
  sum_each<kWidth, 1>(
      its, arrays, partials, [&](std::size_t channel) { return pivot_of(its, x, channel); },
      [](Pair& pair, double pivot, const float(&values)[1]) {
        const double distance = values[0] - pivot;
        pair.add({distance, distance * distance});
      });
}

// A warp for each channel.
__global__ void own_moments_kernel(const Cut its, const float* x, const Pair* partials, double* moments) {
  const std::size_t channel = static_cast<std::size_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const auto count = static_cast<double>(its.batch * its.points);
  if (blockIdx.x == 0 && threadIdx.x == 0) moments[2 * its.channels] = count;
  if (channel >= its.channels) return;
  const Pair sum = sum_of_partials(its, partials, channel);
  if (threadIdx.x % kWarp > 0) return;
  const double distances = sum.second - sum.first * sum.first / count;
  moments[channel] = pivot_of(its, x, channel) + sum.first / count;
  moments[its.channels + channel] = distances < 0 ? 0 : distances;  // a NaN stays one
}

// A thread for each channel. The operations of the host's loop (tensor/batch_norm.cpp), in its order.
__global__ void statistics_kernel(const tensor::BatchNormForward its) {
  const std::size_t channels = its.shape.channels, numbers = 2 * channels + 1;
  const std::size_t channel = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  double count = 0, mean = 0, distances = 0;
  for (std::size_t rank = 0; rank < its.ranks; ++rank) {
    const double* const own = its.moments + rank * numbers;
    const double its_count = own[2 * channels];
    if (its_count == 0) continue;
    const double all = count + its_count;
    if (channel < channels) {
      const double difference = own[channel] - mean;
      mean += difference * its_count / all;
      distances += own[channels + channel] + difference * difference * count * its_count / all;
    }
    count = all;
  }
  if (channel == 0) its.statistics[2 * channels] = count;
  if (channel >= channels) return;
  const bool has_variance = count >= 2;
  its.statistics[channel] = mean;
  its.statistics[channels + channel] = has_variance ? 1 / sqrt(distances / count + its.epsilon) : nan("");
  const auto take_in = [&](float* running, double now) {
    if (running == nullptr || !has_variance) return;
    running[channel] = static_cast<float>((1 - its.momentum) * running[channel] + its.momentum * now);
  };
  take_in(its.parameters.running_mean, mean);
  take_in(its.parameters.running_variance, distances / (count - 1));
}

// What normalising an element of a channel takes.
struct Normalising {
  double mean, scale, shift;
  __device__ float of(float x) const { return static_cast<float>((x - mean) * scale + shift); }
};

__device__ Normalising normalising(const tensor::BatchNormForward& its, std::size_t channel) {
  const float* const weight = its.parameters.weight;
  const float* const bias = its.parameters.bias;
  return {its.statistics[channel],
          (weight != nullptr ? weight[channel] : 1) * its.statistics[its.shape.channels + channel],
          bias != nullptr ? bias[channel] : 0.0};
}

// kByChannel: a vector's elements are of one channel.
template <unsigned kWidth, bool kByChannel>
__global__ void normalise_kernel(const Cut cut, const tensor::BatchNormForward its) {
  const Places places = places_of(cut, kWidth);
  if (places.left == 0) return;
  constexpr unsigned kChannels = kByChannel ? 1 : kWidth;
  Normalising with[kChannels];
#pragma unroll
  for (unsigned i = 0; i < kChannels; ++i) {
    with[i] = normalising(its, kByChannel ? places.first_channel : (places.at % cut.columns() + i) / cut.points);
  }
  const float* const arrays[] = {its.x};
  visit_each<kWidth, 1>(places, arrays, [&](std::size_t at, const float(&values)[1][kWidth]) {
    float y[kWidth];
#pragma unroll
    for (unsigned i = 0; i < kWidth; ++i) y[i] = with[i % kChannels].of(values[0][i]);
    store(its.y + at, y);
  });
}

template <unsigned kWidth>
__global__ void gradient_sums_kernel(const Cut cut, const tensor::BatchNormBackward its, Pair* partials) {
  const float* const arrays[] = {its.of_y, its.x};
  sum_each<kWidth, 2>(
      cut, arrays, partials, [&](std::size_t channel) { return its.statistics[channel]; },
      [](Pair& pair, double mean, const float(&values)[2]) {
        pair.add({values[0], values[0] * (values[1] - mean)});
      });
}

// A warp for each channel.
__global__ void own_gradient_sums_kernel(const Cut cut, const tensor::BatchNormBackward its, const Pair* partials) {
  const std::size_t channel = static_cast<std::size_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (channel >= cut.channels) return;
  const Pair sum = sum_of_partials(cut, partials, channel);
  if (threadIdx.x % kWarp > 0) return;
  its.sums[channel] = sum.first;
  its.sums[cut.channels + channel] = sum.second;
  if (its.of_bias != nullptr) its.of_bias[channel] += static_cast<float>(sum.first);
  if (its.of_weight != nullptr) {
    its.of_weight[channel] += static_cast<float>(sum.second * its.statistics[cut.channels + channel]);
  }
}

// What the gradient of an element of a channel takes.
struct Gradient {
  double mean, mean_gradient, slope, scale;
  __device__ float of(float of_y, float x) const {
    const double distance = x - mean;
    return static_cast<float>((of_y - mean_gradient - distance * slope) * scale);
  }
};

__device__ Gradient gradient(const tensor::BatchNormBackward& its, std::size_t channel) {
  const std::size_t channels = its.shape.channels;
  const double inverse_std = its.statistics[channels + channel], count = its.statistics[2 * channels];
  return {its.statistics[channel], its.sums[channel] / count,
          inverse_std * inverse_std * its.sums[channels + channel] / count,
          inverse_std * (its.weight != nullptr ? its.weight[channel] : 1)};
}

template <unsigned kWidth, bool kByChannel>
__global__ void gradients_kernel(const Cut cut, const tensor::BatchNormBackward its) {
  const Places places = places_of(cut, kWidth);
  if (places.left == 0) return;
  constexpr unsigned kChannels = kByChannel ? 1 : kWidth;
  Gradient with[kChannels];
#pragma unroll
  for (unsigned i = 0; i < kChannels; ++i) {
    with[i] = gradient(its, kByChannel ? places.first_channel : (places.at % cut.columns() + i) / cut.points);
  }
  const float* const arrays[] = {its.of_y, its.x};
  visit_each<kWidth, 2>(places, arrays, [&](std::size_t at, const float(&values)[2][kWidth]) {
    float of_x[kWidth];
#pragma unroll
    for (unsigned i = 0; i < kWidth; ++i) of_x[i] = with[i % kChannels].of(values[0][i], values[1][i]);
    store(its.of_x + at, of_x);
  });
}

unsigned blocks_for(std::size_t channels, unsigned in_a_block) {
  return static_cast<unsigned>(std::max<std::size_t>(1, divided(channels, in_a_block)));
}

Pair* pairs(double* partials) { return reinterpret_cast<Pair*>(partials); }

}  // namespace

std::size_t batch_norm_partials(const BatchShape& shape) {
  if (shape.size() == 0) return 0;
  const auto pairs_of = [&](bool is_aligned) {
    const Cut its = cut(shape, is_aligned, kToSum);
    return its.is_by_channel ? std::size_t{its.blocks} : its.columns() * its.slices;
  };
  return 2 * std::max(pairs_of(true), pairs_of(false));
}

cudaError_t begin_batch_norm(const tensor::BatchNormForward& its, double* partials, cudaStream_t stream) {
  const std::size_t numbers = tensor::batch_norm_numbers(its.shape.channels);
  double* const moments = its.moments + its.rank * numbers;
  if (its.shape.size() == 0) return cudaMemsetAsync(moments, 0, numbers * sizeof(double), stream);
  const Cut how = cut(its.shape, are_aligned({its.x}), kToSum);
  const auto kernel = how.width == 1 ? moments_kernel<1> : moments_kernel<kVectorWidth>;
  const cudaError_t code = launch(kernel, how.blocks, stream, how, its.x, pairs(partials));
  if (code != cudaSuccess) return code;
  return launch(own_moments_kernel, blocks_for(how.channels, kWarps), stream, how, its.x, pairs(partials), moments);
}

cudaError_t end_batch_norm(const tensor::BatchNormForward& its, cudaStream_t stream) {
  const cudaError_t code = launch(statistics_kernel, blocks_for(its.shape.channels, kThreads), stream, its);
  if (code != cudaSuccess || its.shape.size() == 0) return code;
  const Cut how = cut(its.shape, are_aligned({its.x, its.y}), kToWrite);
  const auto by_channel = how.width == 1 ? normalise_kernel<1, true> : normalise_kernel<kVectorWidth, true>;
  const auto by_column = how.width == 1 ? normalise_kernel<1, false> : normalise_kernel<kVectorWidth, false>;
  return launch(how.is_by_channel ? by_channel : by_column, how.blocks, stream, how, its);
}

cudaError_t begin_batch_norm(const tensor::BatchNormBackward& its, double* partials, cudaStream_t stream) {
  if (its.shape.size() == 0) {
    return cudaMemsetAsync(its.sums, 0, 2 * its.shape.channels * sizeof(double), stream);
  }
  const Cut how = cut(its.shape, are_aligned({its.of_y, its.x}), kToSum);
  const auto kernel = how.width == 1 ? gradient_sums_kernel<1> : gradient_sums_kernel<kVectorWidth>;
  const cudaError_t code = launch(kernel, how.blocks, stream, how, its, pairs(partials));
  if (code != cudaSuccess) return code;
  return launch(own_gradient_sums_kernel, blocks_for(how.channels, kWarps), stream, how, its, pairs(partials));
}

cudaError_t end_batch_norm(const tensor::BatchNormBackward& its, cudaStream_t stream) {
  if (its.shape.size() == 0) return cudaSuccess;
  const Cut how = cut(its.shape, are_aligned({its.of_y, its.x, its.of_x}), kToWrite);
  const auto by_channel = how.width == 1 ? gradients_kernel<1, true> : gradients_kernel<kVectorWidth, true>;
  const auto by_column = how.width == 1 ? gradients_kernel<1, false> : gradients_kernel<kVectorWidth, false>;
  return launch(how.is_by_channel ? by_channel : by_column, how.blocks, stream, how, its);
}

}  // namespace ddp::nccl_backend::kernels
