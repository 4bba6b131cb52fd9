#include "kernels.hpp"

#include <algorithm>

#include "device.hpp"

namespace train::kernels {

namespace {

constexpr unsigned kThreads = 256;
constexpr std::size_t kBlocksMax = 65'535;

unsigned blocks_for(std::size_t count) {
  return static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, kBlocksMax));
}

void check_launch() { check(cudaGetLastError(), "launching a kernel"); }

__device__ std::size_t first_index() { return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ std::size_t stride() { return static_cast<std::size_t>(gridDim.x) * blockDim.x; }

// SplitMix64. Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators".
__device__ std::uint64_t hash(std::uint64_t seed, std::size_t index) {
  std::uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

// Over the threads of a block, in one order; the result is every thread's.
template <class T, class Combine>
__device__ T combine_block(T value, Combine combine) {
  __shared__ T values[kThreads];
  values[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) values[threadIdx.x] = combine(values[threadIdx.x], values[threadIdx.x + half]);
    __syncthreads();
  }
  const T result = values[0];
  __syncthreads();
  return result;
}

struct Add {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Greater {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

__global__ void gather_kernel(const float* all, const int* all_labels, const std::int64_t* indices, std::size_t count,
                              std::size_t width, float* rows, int* labels) {
  for (std::size_t i = first_index(); i < count * width; i += stride()) {
    const std::size_t row = i / width;
    rows[i] = all[static_cast<std::size_t>(indices[row]) * width + i % width];
    if (i % width == 0) labels[row] = all_labels[indices[row]];
  }
}

__global__ void add_bias_kernel(float* values, const float* bias, std::size_t count, std::size_t width, bool relu) {
  for (std::size_t i = first_index(); i < count; i += stride()) {
    const float value = values[i] + bias[i % width];
    values[i] = relu && value < 0 ? 0.0F : value;  // not fmaxf(), which would hide that a value is not a number
  }
}

// One block a row.
__global__ void softmax_kernel(float* logits, const int* labels, std::size_t rows, std::size_t classes, float* losses) {
  for (std::size_t row = blockIdx.x; row < rows; row += gridDim.x) {
    float* const own = logits + row * classes;
    const auto label = static_cast<std::size_t>(labels[row]);
    float largest = -INFINITY;
    for (std::size_t c = threadIdx.x; c < classes; c += kThreads) largest = fmaxf(largest, own[c]);
    largest = combine_block(largest, Greater{});
    float sum = 0;
    for (std::size_t c = threadIdx.x; c < classes; c += kThreads) sum += expf(own[c] - largest);
    sum = combine_block(sum, Add{});
    if (threadIdx.x == 0) losses[row] = logf(sum) + (largest - own[label]);
    __syncthreads();
    const float scale = 1.0F / static_cast<float>(rows);
    for (std::size_t c = threadIdx.x; c < classes; c += kThreads)
      own[c] = (expf(own[c] - largest) / sum - (c == label ? 1.0F : 0.0F)) * scale;
    __syncthreads();
  }
}

__global__ void add_mean_kernel(const float* values, std::size_t count, double* total) {
  double sum = 0;
  for (std::size_t i = threadIdx.x; i < count; i += kThreads) sum += static_cast<double>(values[i]);
  sum = combine_block(sum, Add{});
  if (threadIdx.x == 0) *total += sum / static_cast<double>(count);
}

__global__ void count_right_kernel(const float* logits, const int* labels, std::size_t rows, std::size_t classes,
                                   unsigned* right) {
  for (std::size_t row = first_index(); row < rows; row += stride()) {
    const float* const own = logits + row * classes;
    std::size_t best = 0;
    for (std::size_t c = 1; c < classes; ++c)
      if (own[c] > own[best]) best = c;
    if (best == static_cast<std::size_t>(labels[row])) atomicAdd(right, 1U);
  }
}

__global__ void through_relu_kernel(float* gradients, const float* activations, std::size_t count) {
  for (std::size_t i = first_index(); i < count; i += stride())
    if (activations[i] <= 0) gradients[i] = 0;
}

__global__ void sum_columns_kernel(const float* values, std::size_t rows, std::size_t width, float* sums) {
  for (std::size_t c = first_index(); c < width; c += stride()) {
    float sum = 0;
    for (std::size_t r = 0; r < rows; ++r) sum += values[r * width + c];
    sums[c] = sum;
  }
}

__global__ void descend_kernel(float* values, float* velocities, const float* gradients, std::size_t count,
                               float learning_rate, float momentum) {
  for (std::size_t i = first_index(); i < count; i += stride()) {
    const float velocity = momentum * velocities[i] + gradients[i];
    velocities[i] = velocity;
    values[i] -= learning_rate * velocity;
  }
}

__global__ void fill_uniform_kernel(float* values, std::size_t count, float limit, std::uint64_t seed) {
  for (std::size_t i = first_index(); i < count; i += stride())
    values[i] = limit * (2 * (static_cast<float>(hash(seed, i) >> 40) / 16'777'216.0F) - 1);
}

__global__ void fill_labels_kernel(int* labels, std::size_t count, int classes, std::uint64_t seed) {
  for (std::size_t i = first_index(); i < count; i += stride())
    labels[i] = static_cast<int>(hash(seed, i) % static_cast<std::uint64_t>(classes));
}

}  // namespace

void gather(const float* all, const int* all_labels, const std::int64_t* indices, std::size_t count, std::size_t width,
            float* rows, int* labels, cudaStream_t stream) {
  gather_kernel<<<blocks_for(count * width), kThreads, 0, stream>>>(all, all_labels, indices, count, width, rows,
                                                                    labels);
  check_launch();
}

void add_bias(float* values, const float* bias, std::size_t rows, std::size_t width, bool relu, cudaStream_t stream) {
  add_bias_kernel<<<blocks_for(rows * width), kThreads, 0, stream>>>(values, bias, rows * width, width, relu);
  check_launch();
}

void softmax_cross_entropy(float* logits, const int* labels, std::size_t rows, std::size_t classes, float* losses,
                           cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(std::min(rows, kBlocksMax));
  softmax_kernel<<<blocks, kThreads, 0, stream>>>(logits, labels, rows, classes, losses);
  check_launch();
}

void add_mean(const float* values, std::size_t count, double* total, cudaStream_t stream) {
  add_mean_kernel<<<1, kThreads, 0, stream>>>(values, count, total);
  check_launch();
}

void count_right(const float* logits, const int* labels, std::size_t rows, std::size_t classes, unsigned* right,
                 cudaStream_t stream) {
  count_right_kernel<<<blocks_for(rows), kThreads, 0, stream>>>(logits, labels, rows, classes, right);
  check_launch();
}

void through_relu(float* gradients, const float* activations, std::size_t count, cudaStream_t stream) {
  through_relu_kernel<<<blocks_for(count), kThreads, 0, stream>>>(gradients, activations, count);
  check_launch();
}

void sum_columns(const float* values, std::size_t rows, std::size_t width, float* sums, cudaStream_t stream) {
  sum_columns_kernel<<<blocks_for(width), kThreads, 0, stream>>>(values, rows, width, sums);
  check_launch();
}

void descend(float* values, float* velocities, const float* gradients, std::size_t count, float learning_rate,
             float momentum, cudaStream_t stream) {
  descend_kernel<<<blocks_for(count), kThreads, 0, stream>>>(values, velocities, gradients, count, learning_rate,
                                                             momentum);
  check_launch();
}

void fill_uniform(float* values, std::size_t count, float limit, std::uint64_t seed, cudaStream_t stream) {
  fill_uniform_kernel<<<blocks_for(count), kThreads, 0, stream>>>(values, count, limit, seed);
  check_launch();
}

void fill_labels(int* labels, std::size_t count, int classes, std::uint64_t seed, cudaStream_t stream) {
  fill_labels_kernel<<<blocks_for(count), kThreads, 0, stream>>>(labels, count, classes, seed);
  check_launch();
}

}  // namespace train::kernels
