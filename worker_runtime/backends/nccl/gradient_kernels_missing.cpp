// In the place of the .cu files, where there is no nvcc, or where sanitizers are to check libddp.
#include "worker_runtime/backends/nccl/batch_norm_kernels.hpp"
#include "worker_runtime/backends/nccl/gradient_kernels.hpp"
#include "worker_runtime/backends/nccl/hash_kernel.hpp"

#include "ddp/error.hpp"

namespace ddp::nccl_backend::kernels {

namespace {

[[noreturn]] void refuse() {
  throw InvalidArgument(
      "this libddp has no kernels of its own for a GPU: it was built without nvcc\n"
      "try:   a libddp that was built where CMake finds nvcc, or a kernel of your own on "
      "DistributedDataParallel::bucket_memory()");
}

}  // namespace

cudaError_t scale(const Batch&, double, const std::int32_t*, cudaStream_t) { refuse(); }
cudaError_t clamp(const Batch&, double, cudaStream_t) { refuse(); }
cudaError_t find_non_finite(const Batch&, std::int32_t*, cudaStream_t) { refuse(); }
cudaError_t sum_squares(const Batch&, double*, cudaStream_t) { refuse(); }
cudaError_t sum(const double*, std::size_t, double*, cudaStream_t) { refuse(); }
cudaError_t norm(const double*, std::size_t, double*, cudaStream_t) { refuse(); }
cudaError_t clip(const Batch&, const double*, std::size_t, double, double*, cudaStream_t) { refuse(); }
cudaError_t narrow(const float*, void*, std::size_t, DataType, cudaStream_t) { refuse(); }
cudaError_t widen(const void*, float*, std::size_t, DataType, cudaStream_t) { refuse(); }
cudaError_t update(const PieceBatch&, const tensor::AdamWNumbers&, cudaStream_t) { refuse(); }
cudaError_t update(const PieceBatch&, const tensor::SgdNumbers&, cudaStream_t) { refuse(); }
cudaError_t add_hashes(const Batch&, std::uint64_t*, cudaStream_t) { refuse(); }
std::size_t batch_norm_partials(const BatchShape&) { refuse(); }
cudaError_t begin_batch_norm(const tensor::BatchNormForward&, double*, cudaStream_t) { refuse(); }
cudaError_t end_batch_norm(const tensor::BatchNormForward&, cudaStream_t) { refuse(); }
cudaError_t begin_batch_norm(const tensor::BatchNormBackward&, double*, cudaStream_t) { refuse(); }
cudaError_t end_batch_norm(const tensor::BatchNormBackward&, cudaStream_t) { refuse(); }

}  // namespace ddp::nccl_backend::kernels
