// The kernels of a batch normalisation (tensor/batch_norm.hpp), as functions that put them on a stream and return at
// once. They check nothing, and return what the launch returns.
//
// Statistics and what follows from them have the bits of the host's loops, as far as moments and sums have them. Those
// are added in double, in an order that depends on the shape and the alignment of the arrays alone: the same bits on
// every run.
//
// C++17, for nvcc. Threads: any.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "worker_runtime/tensor/batch_norm.hpp"

namespace ddp::nccl_backend::kernels {

// How many doubles of device memory the two `begin` work in.
std::size_t batch_norm_partials(const BatchShape& shape);

cudaError_t begin_batch_norm(const tensor::BatchNormForward& its, double* partials, cudaStream_t stream);
cudaError_t end_batch_norm(const tensor::BatchNormForward& its, cudaStream_t stream);
cudaError_t begin_batch_norm(const tensor::BatchNormBackward& its, double* partials, cudaStream_t stream);
cudaError_t end_batch_norm(const tensor::BatchNormBackward& its, cudaStream_t stream);

}  // namespace ddp::nccl_backend::kernels
