// The kernels of examples/train_mlp_cuda as plain loops over host memory: what they are checked against on a GPU, and
// what stands in for them without one (host_kernels_on_stream.cpp). kernels.hpp says what each does.
//
// Sums are formed in double, so these are nearer to the truth than what they check.
#pragma once

#include <cstddef>
#include <cstdint>

namespace train::host_kernels {

void gather(const float* all, const int* all_labels, const std::int64_t* indices, std::size_t count, std::size_t width,
            float* rows, int* labels);
void add_bias(float* values, const float* bias, std::size_t rows, std::size_t width, bool relu);
void softmax_cross_entropy(float* logits, const int* labels, std::size_t rows, std::size_t classes, float* losses);
void add_mean(const float* values, std::size_t count, double* total);
void count_right(const float* logits, const int* labels, std::size_t rows, std::size_t classes, unsigned* right);
void through_relu(float* gradients, const float* activations, std::size_t count);
void sum_columns(const float* values, std::size_t rows, std::size_t width, float* sums);
void descend(float* values, float* velocities, const float* gradients, std::size_t count, float learning_rate,
             float momentum);
void fill_uniform(float* values, std::size_t count, float limit, std::uint64_t seed);
void fill_labels(int* labels, std::size_t count, int classes, std::uint64_t seed);

}  // namespace train::host_kernels
