// The kernels on gradients, in the place of gradient_kernels.cu: the host's loops as work of the stand-in's streams.
#include "worker_runtime/backends/nccl/gradient_kernels.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/fake_gpu/host_kernels_launch.hpp"
#include "worker_runtime/tensor/arithmetic.hpp"
#include "worker_runtime/tensor/convert.hpp"

namespace ddp::nccl_backend::kernels {

namespace {

using fake_gpu::launch_kernel;
using fake_gpu::Touched;
using fake_gpu::touched_bytes;

std::vector<MemoryRange> ranges_of(const Batch& batch) {
  std::vector<MemoryRange> ranges;
  for (int i = 0; i < batch.count; ++i) ranges.emplace_back(batch.ranges[i].data, batch.ranges[i].count, batch.type);
  return ranges;
}

// Those of the batch, and the others.
std::vector<Touched> touched_by(const Batch& batch, std::vector<Touched> touched = {}) {
  for (const MemoryRange& each : ranges_of(batch)) touched.push_back(touched_bytes(each.data, each.bytes()));
  return touched;
}

double norm_of(const double* partials, std::size_t count) {
  return std::sqrt(std::accumulate(partials, partials + count, 0.0));
}

float gradient_of(const Piece& piece, std::size_t index, DataType type) {
  if (type == DataType::float32) return static_cast<const float*>(piece.g)[index];
  float wide = 0;
  tensor::widen(static_cast<const std::uint16_t*>(piece.g) + index, &wide, 1, type);
  return wide;
}

// Calls change(piece, index, gradient) for each element, and rounds its p.
template <class Change>
cudaError_t launch_update(const PieceBatch& batch, cudaStream_t stream, Change change) {
  const std::vector<Piece> pieces(batch.pieces, batch.pieces + batch.count);
  std::vector<Touched> touched;
  for (const Piece& its : pieces) {
    touched.push_back(touched_bytes(its.g, its.count * size_of(batch.type)));
    for (const float* each : {its.p, its.m, its.v}) touched.emplace_back(each, each == nullptr ? 0 : its.count);
    touched.push_back(touched_bytes(its.rounded, its.rounded == nullptr ? 0 : its.count * size_of(batch.type)));
  }
  return launch_kernel("update", stream, std::move(touched), [pieces, type = batch.type, change] {
    for (const Piece& its : pieces) {
      for (std::size_t i = 0; i < its.count; ++i) {
        change(its, i, gradient_of(its, i, type));
        if (its.rounded != nullptr) tensor::narrow(its.p + i, static_cast<std::uint16_t*>(its.rounded) + i, 1, type);
      }
    }
  });
}

void scale_each(const std::vector<MemoryRange>& ranges, double factor) {
  for (const MemoryRange& each : ranges) tensor::scale(each, factor);
}

}  // namespace

cudaError_t scale(const Batch& batch, double factor, const std::int32_t* unless, cudaStream_t stream) {
  return launch_kernel("scale", stream, touched_by(batch, {{unless, unless == nullptr ? 0U : 1U}}),
                       [ranges = ranges_of(batch), factor, unless] {
                         if (unless == nullptr || *unless == 0) scale_each(ranges, factor);
                       });
}

cudaError_t clamp(const Batch& batch, double limit, cudaStream_t stream) {
  return launch_kernel("clamp", stream, touched_by(batch), [ranges = ranges_of(batch), limit] {
    for (const MemoryRange& each : ranges) tensor::clamp(each, limit);
  });
}

cudaError_t find_non_finite(const Batch& batch, std::int32_t* found, cudaStream_t stream) {
  return launch_kernel("find_non_finite", stream, touched_by(batch, {{found, 1}}), [ranges = ranges_of(batch), found] {
    if (!std::all_of(ranges.begin(), ranges.end(), tensor::is_finite)) *found = 1;
  });
}

cudaError_t sum_squares(const Batch& batch, double* partials, cudaStream_t stream) {
  return launch_kernel("sum_squares", stream, touched_by(batch, {{partials, kPartials}}),
                       [ranges = ranges_of(batch), partials] {
                         std::fill_n(partials, kPartials, 0.0);
                         for (const MemoryRange& each : ranges) *partials += tensor::sum_of_squares(each);
                       });
}

cudaError_t sum(const double* partials, std::size_t count, double* result, cudaStream_t stream) {
  return launch_kernel("sum", stream, {{partials, count}, {result, 1}},
                       [=] { *result = std::accumulate(partials, partials + count, 0.0); });
}

cudaError_t norm(const double* partials, std::size_t count, double* result, cudaStream_t stream) {
  return launch_kernel("norm", stream, {{partials, count}, {result, 1}}, [=] { *result = norm_of(partials, count); });
}

cudaError_t clip(const Batch& batch, const double* partials, std::size_t count, double norm_max, double* result,
                 cudaStream_t stream) {
  return launch_kernel("clip", stream, touched_by(batch, {{partials, count}, {result, 1}}),
                       [=, ranges = ranges_of(batch)] {
                         const double norm = norm_of(partials, count);
                         *result = norm;
                         if (norm > norm_max && !std::isinf(norm)) scale_each(ranges, norm_max / norm);
                       });
}

cudaError_t narrow(const float* from, void* to, std::size_t count, DataType type, cudaStream_t stream) {
  auto* const halves = static_cast<std::uint16_t*>(to);
  return launch_kernel("narrow", stream, {{from, count}, {halves, count}},
                       [=] { tensor::narrow(from, halves, count, type); });
}

cudaError_t widen(const void* from, float* to, std::size_t count, DataType type, cudaStream_t stream) {
  const auto* const halves = static_cast<const std::uint16_t*>(from);
  return launch_kernel("widen", stream, {{halves, count}, {to, count}},
                       [=] { tensor::widen(halves, to, count, type); });
}

cudaError_t update(const PieceBatch& batch, const tensor::AdamWNumbers& numbers, cudaStream_t stream) {
  return launch_update(batch, stream, [its = numbers](const Piece& piece, std::size_t i, float g) {
    const float gradient = g * its.scale;
    piece.m[i] += its.new_part * (gradient - piece.m[i]);
    piece.v[i] = its.beta2 * piece.v[i] + its.square_part * gradient * gradient;
    piece.p[i] = piece.p[i] * its.kept - its.rate * piece.m[i] / (std::sqrt(piece.v[i]) / its.correction + its.epsilon);
  });
}

cudaError_t update(const PieceBatch& batch, const tensor::SgdNumbers& numbers, cudaStream_t stream) {
  return launch_update(batch, stream, [its = numbers](const Piece& piece, std::size_t i, float g) {
    const float gradient = g * its.scale + its.decay * piece.p[i];
    float change = gradient;
    if (piece.m != nullptr) {
      piece.m[i] = its.old_part * piece.m[i] + gradient;
      change = its.nesterov ? gradient + its.momentum * piece.m[i] : piece.m[i];
    }
    piece.p[i] -= its.rate * change;
  });
}

}  // namespace ddp::nccl_backend::kernels
