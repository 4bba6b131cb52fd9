// train::kernels, in the place of kernels.cu: the plain loops as work of the stand-in's streams.
#include "examples/train_mlp_cuda/kernels.hpp"

#include <stdexcept>
#include <string>
#include <utility>

#include "tests/fake_gpu/host_kernels.hpp"
#include "tests/fake_gpu/host_kernels_launch.hpp"

namespace train::kernels {

namespace {

using ddp::fake_gpu::Touched;

template <class Work>
void launch(const char* name, cudaStream_t stream, std::initializer_list<Touched> touched, Work work) {
  const cudaError_t error = ddp::fake_gpu::launch_kernel(name, stream, touched, std::move(work));
  if (error != cudaSuccess) throw std::runtime_error(std::string("launching a kernel: ") + cudaGetErrorString(error));
}

}  // namespace

void gather(const float* all, const int* all_labels, const std::int64_t* indices, std::size_t count, std::size_t width,
            float* rows, int* labels, cudaStream_t stream) {
  launch("gather", stream, {{indices, count}, {rows, count * width}, {labels, count}, {all, 1}, {all_labels, 1}},
         [=] { host_kernels::gather(all, all_labels, indices, count, width, rows, labels); });
}

void add_bias(float* values, const float* bias, std::size_t rows, std::size_t width, bool relu, cudaStream_t stream) {
  launch("add_bias", stream, {{values, rows * width}, {bias, width}},
         [=] { host_kernels::add_bias(values, bias, rows, width, relu); });
}

void softmax_cross_entropy(float* logits, const int* labels, std::size_t rows, std::size_t classes, float* losses,
                           cudaStream_t stream) {
  launch("softmax_cross_entropy", stream, {{logits, rows * classes}, {labels, rows}, {losses, rows}},
         [=] { host_kernels::softmax_cross_entropy(logits, labels, rows, classes, losses); });
}

void add_mean(const float* values, std::size_t count, double* total, cudaStream_t stream) {
  launch("add_mean", stream, {{values, count}, {total, 1}}, [=] { host_kernels::add_mean(values, count, total); });
}

void count_right(const float* logits, const int* labels, std::size_t rows, std::size_t classes, unsigned* right,
                 cudaStream_t stream) {
  launch("count_right", stream, {{logits, rows * classes}, {labels, rows}, {right, 1}},
         [=] { host_kernels::count_right(logits, labels, rows, classes, right); });
}

void through_relu(float* gradients, const float* activations, std::size_t count, cudaStream_t stream) {
  launch("through_relu", stream, {{gradients, count}, {activations, count}},
         [=] { host_kernels::through_relu(gradients, activations, count); });
}

void sum_columns(const float* values, std::size_t rows, std::size_t width, float* sums, cudaStream_t stream) {
  launch("sum_columns", stream, {{values, rows * width}, {sums, width}},
         [=] { host_kernels::sum_columns(values, rows, width, sums); });
}

void descend(float* values, float* velocities, const float* gradients, std::size_t count, float learning_rate,
             float momentum, cudaStream_t stream) {
  launch("descend", stream, {{values, count}, {velocities, count}, {gradients, count}},
         [=] { host_kernels::descend(values, velocities, gradients, count, learning_rate, momentum); });
}

void fill_uniform(float* values, std::size_t count, float limit, std::uint64_t seed, cudaStream_t stream) {
  launch("fill_uniform", stream, {{values, count}}, [=] { host_kernels::fill_uniform(values, count, limit, seed); });
}

void fill_labels(int* labels, std::size_t count, int classes, std::uint64_t seed, cudaStream_t stream) {
  launch("fill_labels", stream, {{labels, count}}, [=] { host_kernels::fill_labels(labels, count, classes, seed); });
}

}  // namespace train::kernels
