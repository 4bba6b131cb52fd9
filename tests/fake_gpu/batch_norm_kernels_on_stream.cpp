// The kernels of a batch normalisation, in the place of batch_norm_kernels.cu: the host's loops as work of the
// stand-in's streams.
#include "worker_runtime/backends/nccl/batch_norm_kernels.hpp"

#include <utility>
#include <vector>

#include "tests/fake_gpu/host_kernels_launch.hpp"

namespace ddp::nccl_backend::kernels {

namespace {

using fake_gpu::launch_kernel;
using fake_gpu::Touched;
using tensor::batch_norm_numbers;

Touched of_channels(const float* values, const BatchShape& shape) {
  return {values, values == nullptr ? 0 : shape.channels};
}

std::vector<Touched> touched_by_begin(const tensor::BatchNormForward& its) {
  return {{its.x, its.shape.size()}, {its.moments, its.ranks * batch_norm_numbers(its.shape.channels)}};
}

std::vector<Touched> touched_by_end(const tensor::BatchNormForward& its) {
  const BatchNormParameters& parameters = its.parameters;
  std::vector<Touched> touched = touched_by_begin(its);
  touched.emplace_back(its.y, its.shape.size());
  touched.emplace_back(its.statistics, batch_norm_numbers(its.shape.channels));
  touched.push_back(of_channels(parameters.weight, its.shape));
  touched.push_back(of_channels(parameters.bias, its.shape));
  touched.push_back(of_channels(parameters.running_mean, its.shape));
  touched.push_back(of_channels(parameters.running_variance, its.shape));
  return touched;
}

std::vector<Touched> touched_by_begin(const tensor::BatchNormBackward& its) {
  return {{its.of_y, its.shape.size()},
          {its.x, its.shape.size()},
          {its.statistics, batch_norm_numbers(its.shape.channels)},
          {its.sums, 2 * its.shape.channels},
          of_channels(its.of_weight, its.shape),
          of_channels(its.of_bias, its.shape)};
}

std::vector<Touched> touched_by_end(const tensor::BatchNormBackward& its) {
  std::vector<Touched> touched = touched_by_begin(its);
  touched.emplace_back(its.of_x, its.shape.size());
  touched.push_back(of_channels(its.weight, its.shape));
  return touched;
}

template <class Pass>
cudaError_t begin_on_stream(const Pass& its, double* partials, cudaStream_t stream) {
  std::vector<Touched> touched = touched_by_begin(its);
  touched.emplace_back(partials, batch_norm_partials(its.shape));
  return launch_kernel("begin_batch_norm", stream, std::move(touched), [its] { tensor::begin_batch_norm(its); });
}

template <class Pass>
cudaError_t end_on_stream(const Pass& its, cudaStream_t stream) {
  return launch_kernel("end_batch_norm", stream, touched_by_end(its), [its] { tensor::end_batch_norm(its); });
}

}  // namespace

std::size_t batch_norm_partials(const BatchShape& shape) { return 2 * shape.channels; }

cudaError_t begin_batch_norm(const tensor::BatchNormForward& its, double* partials, cudaStream_t stream) {
  return begin_on_stream(its, partials, stream);
}
cudaError_t end_batch_norm(const tensor::BatchNormForward& its, cudaStream_t stream) {
  return end_on_stream(its, stream);
}
cudaError_t begin_batch_norm(const tensor::BatchNormBackward& its, double* partials, cudaStream_t stream) {
  return begin_on_stream(its, partials, stream);
}
cudaError_t end_batch_norm(const tensor::BatchNormBackward& its, cudaStream_t stream) {
  return end_on_stream(its, stream);
}

}  // namespace ddp::nccl_backend::kernels
