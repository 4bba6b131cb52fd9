// The small kernels beside cuBLAS. Each is put on the stream and returns at once; matrices are row-major float32.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace train::kernels {

// rows[i] = all[indices[i]], of `width` elements, and labels likewise.
void gather(const float* all, const int* all_labels, const std::int64_t* indices, std::size_t count, std::size_t width,
            float* rows, int* labels, cudaStream_t stream);

// values[r][c] += bias[c]; then, with relu, what is below 0 becomes 0.
void add_bias(float* values, const float* bias, std::size_t rows, std::size_t width, bool relu, cudaStream_t stream);

// logits[r] become the gradients of the mean cross-entropy, and losses[r] that of row r; classes <= 65,536.
void softmax_cross_entropy(float* logits, const int* labels, std::size_t rows, std::size_t classes, float* losses,
                           cudaStream_t stream);

// *total += the mean of values[0, count): in one order, so the same bits on every run.
void add_mean(const float* values, std::size_t count, double* total, cudaStream_t stream);

// *right += the number of rows whose greatest logit is that of their label.
void count_right(const float* logits, const int* labels, std::size_t rows, std::size_t classes, unsigned* right,
                 cudaStream_t stream);

// gradients[i] becomes 0 where activations[i] <= 0.
void through_relu(float* gradients, const float* activations, std::size_t count, cudaStream_t stream);

// sums[c] = the sum over r of values[r][c].
void sum_columns(const float* values, std::size_t rows, std::size_t width, float* sums, cudaStream_t stream);

// SGD with momentum.
void descend(float* values, float* velocities, const float* gradients, std::size_t count, float learning_rate,
             float momentum, cudaStream_t stream);

// Uniform in [-limit, limit), from a hash of seed and index: the same on every device.
void fill_uniform(float* values, std::size_t count, float limit, std::uint64_t seed, cudaStream_t stream);
void fill_labels(int* labels, std::size_t count, int classes, std::uint64_t seed, cudaStream_t stream);

}  // namespace train::kernels
