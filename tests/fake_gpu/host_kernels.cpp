#include "tests/fake_gpu/host_kernels.hpp"

#include <algorithm>
#include <cmath>

namespace train::host_kernels {

namespace {

// SplitMix64, element `index` of its sequence. Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
// generators".
std::uint64_t hash(std::uint64_t seed, std::size_t index) {
  std::uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace

void gather(const float* all, const int* all_labels, const std::int64_t* indices, std::size_t count, std::size_t width,
            float* rows, int* labels) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto from = static_cast<std::size_t>(indices[i]);
    std::copy_n(all + from * width, width, rows + i * width);
    labels[i] = all_labels[from];
  }
}

void add_bias(float* values, const float* bias, std::size_t rows, std::size_t width, bool relu) {
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < width; ++c) {
      float& value = values[r * width + c];
      value += bias[c];
      if (relu && value < 0) value = 0;
    }
  }
}

void softmax_cross_entropy(float* logits, const int* labels, std::size_t rows, std::size_t classes, float* losses) {
  for (std::size_t r = 0; r < rows; ++r) {
    float* const own = logits + r * classes;
    const auto label = static_cast<std::size_t>(labels[r]);
    const double largest = *std::max_element(own, own + classes);
    double sum = 0;
    for (std::size_t c = 0; c < classes; ++c) sum += std::exp(own[c] - largest);
    losses[r] = static_cast<float>(std::log(sum) + largest - own[label]);
    for (std::size_t c = 0; c < classes; ++c) {
      const double probability = std::exp(own[c] - largest) / sum;
      own[c] = static_cast<float>((probability - (c == label ? 1 : 0)) / static_cast<double>(rows));
    }
  }
}

void add_mean(const float* values, std::size_t count, double* total) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += static_cast<double>(values[i]);
  *total += sum / static_cast<double>(count);
}

void count_right(const float* logits, const int* labels, std::size_t rows, std::size_t classes, unsigned* right) {
  for (std::size_t r = 0; r < rows; ++r) {
    const float* const own = logits + r * classes;
    if (std::max_element(own, own + classes) - own == labels[r]) ++*right;
  }
}

void through_relu(float* gradients, const float* activations, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (activations[i] <= 0) gradients[i] = 0;
  }
}

void sum_columns(const float* values, std::size_t rows, std::size_t width, float* sums) {
  for (std::size_t c = 0; c < width; ++c) {
    double sum = 0;
    for (std::size_t r = 0; r < rows; ++r) sum += static_cast<double>(values[r * width + c]);
    sums[c] = static_cast<float>(sum);
  }
}

void descend(float* values, float* velocities, const float* gradients, std::size_t count, float learning_rate,
             float momentum) {
  for (std::size_t i = 0; i < count; ++i) {
    velocities[i] = momentum * velocities[i] + gradients[i];
    values[i] -= learning_rate * velocities[i];
  }
}

void fill_uniform(float* values, std::size_t count, float limit, std::uint64_t seed) {
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = limit * (2 * (static_cast<float>(hash(seed, i) >> 40) / 16'777'216.0F) - 1);
  }
}

void fill_labels(int* labels, std::size_t count, int classes, std::uint64_t seed) {
  for (std::size_t i = 0; i < count; ++i)
    labels[i] = static_cast<int>(hash(seed, i) % static_cast<std::uint64_t>(classes));
}

}  // namespace train::host_kernels
