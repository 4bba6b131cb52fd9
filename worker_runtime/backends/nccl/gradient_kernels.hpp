// The kernels that libddp has of its own, as functions that put them on a stream and return at once. They check
// nothing, and return what the launch returns.
//
// A list of ranges goes to a kernel by value: nothing waits for the host's list, and a graph that is captured keeps its
// own. Launch configurations depend on the ranges alone, so each result has the same bits on every run and on every
// rank whose ranges are alike.
//
// C++17, for nvcc. Threads: any.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ddp/memory.hpp"
#include "worker_runtime/tensor/optimizer_step.hpp"

namespace ddp::nccl_backend::kernels {

constexpr int kRangesAtOnce = 128;      // a kernel's arguments may have 4 KiB
constexpr std::size_t kPartials = 528;  // that sum_squares() writes: 4 for each multiprocessor of an H100

struct Range {
  void* data = nullptr;  // aligned to its elements
  std::size_t count = 0;
};

// Ranges of one type: float32, float64, float16 or bfloat16. None is empty; there is at least one.
struct Batch {
  DataType type = DataType::float32;
  int count = 0;
  Range ranges[kRangesAtOnce];
};

// unless: null, or on the device: nothing is changed if it is not 0 when the kernel runs.
cudaError_t scale(const Batch& batch, double factor, const std::int32_t* unless, cudaStream_t stream);

// limit: as tensor::limit_of_clamp() has it for the type.
cudaError_t clamp(const Batch& batch, double limit, cudaStream_t stream);

// *found becomes 1 if an element is infinite or NaN; else it stays.
cudaError_t find_non_finite(const Batch& batch, std::int32_t* found, cudaStream_t stream);

// Sums of the squares of parts of the batch, in double.
cudaError_t sum_squares(const Batch& batch, double* partials, cudaStream_t stream);

// The sum of `count` partials, and its square root.
cudaError_t sum(const double* partials, std::size_t count, double* result, cudaStream_t stream);
cudaError_t norm(const double* partials, std::size_t count, double* result, cudaStream_t stream);

// The same; and if the norm is finite and above norm_max, scales the batch by norm_max / norm.
cudaError_t clip(const Batch& batch, const double* partials, std::size_t count, double norm_max, double* result,
                 cudaStream_t stream);

// type: of the 16 bits.
cudaError_t narrow(const float* from, void* to, std::size_t count, DataType type, cudaStream_t stream);
cudaError_t widen(const void* from, float* to, std::size_t count, DataType type, cudaStream_t stream);

// --- Steps of optimizers ---

constexpr int kPiecesAtOnce = 64;

// Consecutive elements of one parameter. No array overlaps another.
struct Piece {
  float* p = nullptr;  // the parameter, or its master weights
  const void* g = nullptr;
  float* m = nullptr;       // null without momentum
  float* v = nullptr;       // null but for AdamW
  void* rounded = nullptr;  // the parameter of 16 bits that p is rounded to, of the type of g; null for float32
  std::size_t count = 0;
};

// Pieces whose gradients have one type: float32, float16 or bfloat16. None is empty; there is at least one.
struct PieceBatch {
  DataType type = DataType::float32;
  int count = 0;
  Piece pieces[kPiecesAtOnce];
};

// The bits of the host's loops (tensor/optimizer_step.cpp). A piece of SGD has momentum if its m is not null.
cudaError_t update(const PieceBatch& batch, const tensor::AdamWNumbers& numbers, cudaStream_t stream);
cudaError_t update(const PieceBatch& batch, const tensor::SgdNumbers& numbers, cudaStream_t stream);

}  // namespace ddp::nccl_backend::kernels
