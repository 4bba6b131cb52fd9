// Compiled with -fmad=false: what is multiplied and added is rounded twice, as on the host.
#include "worker_runtime/backends/nccl/gradient_kernels.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstring>

#include "worker_runtime/backends/nccl/kernel_launch.cuh"

namespace ddp::nccl_backend::kernels {

namespace {

constexpr unsigned kVectorBytes = 16;
constexpr unsigned kVectors = 4;                           // that a thread loads before it uses the first
constexpr unsigned kVectorsOfChunk = kThreads * kVectors;  // 16 KiB
constexpr unsigned kBlocksMax = 2112;                      // of a kernel that sums nothing

// How each type lies in memory, and what it is computed with in.
struct Float32 {
  using Stored = float;
  using Wide = float;
  static __device__ float widen(float value) { return value; }
  static __device__ float narrow(float value) { return value; }
};
struct Float64 {
  using Stored = double;
  using Wide = double;
  static __device__ double widen(double value) { return value; }
  static __device__ double narrow(double value) { return value; }
};
struct Float16 {
  using Stored = unsigned short;
  using Wide = float;
  static __device__ float widen(Stored value) { return __half2float(__ushort_as_half(value)); }
  static __device__ Stored narrow(float value) { return __half_as_ushort(__float2half_rn(value)); }
};
struct Bfloat16 {
  using Stored = unsigned short;
  using Wide = float;
  static __device__ float widen(Stored value) { return __bfloat162float(__ushort_as_bfloat16(value)); }
  static __device__ Stored narrow(float value) { return __bfloat16_as_ushort(__float2bfloat16_rn(value)); }
};

template <class Call>
cudaError_t with_half_type(DataType type, const Call& call) {
  switch (type) {
    case DataType::float16: return call(Float16{});
    case DataType::bfloat16: return call(Bfloat16{});
    default: return cudaErrorInvalidValue;
  }
}

template <class Call>
cudaError_t with_type(DataType type, const Call& call) {
  switch (type) {
    case DataType::float32: return call(Float32{});
    case DataType::float64: return call(Float64{});
    default: return with_half_type(type, call);
  }
}

// The ranges cut into chunks, which blocks take in turns.
struct Chunks {
  Range ranges[kRangesAtOnce];
  unsigned ends[kRangesAtOnce];  // by range: how many chunks it has, and those before it
  unsigned total;
};

// Elements in front of the first that vectors may begin at.
template <class Stored>
__host__ __device__ std::size_t head_of(const Range& range) {
  const auto beyond = reinterpret_cast<std::uintptr_t>(range.data) % kVectorBytes;
  const std::size_t head = beyond == 0 ? 0 : (kVectorBytes - beyond) / sizeof(Stored);
  return head < range.count ? head : range.count;
}

template <class Stored>
Chunks chunks_of(const Batch& batch) {
  Chunks chunks{};
  for (int i = 0; i < batch.count; ++i) {
    const Range& range = batch.ranges[i];
    const std::size_t vectors = (range.count - head_of<Stored>(range)) / (kVectorBytes / sizeof(Stored));
    chunks.ranges[i] = range;
    chunks.total += static_cast<unsigned>(std::max<std::size_t>(1, (vectors + kVectorsOfChunk - 1) / kVectorsOfChunk));
    chunks.ends[i] = chunks.total;
  }
  return chunks;
}

// Calls visit(element) for each element of this thread, which may change it. kWrites: whether it does.
template <class Type, bool kWrites, class Visit>
__device__ void visit_each(const Chunks& chunks, const Visit& visit) {
  using Stored = typename Type::Stored;
  constexpr unsigned kPerVector = kVectorBytes / sizeof(Stored);
  unsigned which = 0;
  for (unsigned chunk = blockIdx.x; chunk < chunks.total; chunk += gridDim.x) {
    while (chunk >= chunks.ends[which]) ++which;
    const Range range = chunks.ranges[which];
    const unsigned number = chunk - (which == 0 ? 0 : chunks.ends[which - 1]);
    auto* const elements = static_cast<Stored*>(range.data);
    const std::size_t head = head_of<Stored>(range);
    const std::size_t vectors = (range.count - head) / kPerVector;
    auto* const body = reinterpret_cast<uint4*>(elements + head);
    const std::size_t first = static_cast<std::size_t>(number) * kVectorsOfChunk + threadIdx.x;
    uint4 loaded[kVectors];
#pragma unroll
    for (unsigned k = 0; k < kVectors; ++k) {
      if (first + k * kThreads < vectors) loaded[k] = body[first + k * kThreads];
    }
#pragma unroll
    for (unsigned k = 0; k < kVectors; ++k) {
      if (first + k * kThreads >= vectors) break;
      Stored stored[kPerVector];
      std::memcpy(stored, &loaded[k], sizeof stored);
#pragma unroll
      for (unsigned i = 0; i < kPerVector; ++i) visit(stored[i], k);
      if (!kWrites) continue;
      std::memcpy(&loaded[k], stored, sizeof stored);
      body[first + k * kThreads] = loaded[k];
    }
    if (number > 0) continue;
    const std::size_t tail = head + vectors * kPerVector;
    if (threadIdx.x < head + (range.count - tail)) {
      Stored& element = elements[threadIdx.x < head ? threadIdx.x : tail + (threadIdx.x - head)];
      Stored stored = element;
      visit(stored, 0);
      if (kWrites) element = stored;
    }
  }
}

// Changes each element to what `change` makes of it.
template <class Type, class Change>
__device__ void change_each(const Chunks& chunks, const Change& change) {
  visit_each<Type, true>(
      chunks, [&](typename Type::Stored& element, unsigned) { element = Type::narrow(change(Type::widen(element))); });
}

// Over the threads of a block, in one order; the result is every thread's.
__device__ double sum_of_block(double value) {
  __shared__ double values[kThreads];
  values[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) values[threadIdx.x] += values[threadIdx.x + half];
    __syncthreads();
  }
  const double sum = values[0];
  __syncthreads();
  return sum;
}

// The same in every block.
__device__ double total_of(const double* partials, std::size_t count) {
  double sum = 0;
  for (std::size_t i = threadIdx.x; i < count; i += kThreads) sum += partials[i];
  return sum_of_block(sum);
}

__device__ double norm_of(const double* partials, std::size_t count) { return sqrt(total_of(partials, count)); }

template <class Type>
__global__ void scale_kernel(const __grid_constant__ Chunks chunks, typename Type::Wide factor,
                             const std::int32_t* unless) {
  if (unless != nullptr && *unless != 0) return;
  change_each<Type>(chunks, [factor](typename Type::Wide value) { return value * factor; });
}

template <class Type>
__global__ void clamp_kernel(const __grid_constant__ Chunks chunks, typename Type::Wide limit) {
  change_each<Type>(chunks, [limit](typename Type::Wide value) {
    return value > limit ? limit : value < -limit ? -limit : value;
  });
}

template <class Type>
__global__ void find_non_finite_kernel(const __grid_constant__ Chunks chunks, std::int32_t* found) {
  bool is_any = false;
  visit_each<Type, false>(chunks,
                          [&](typename Type::Stored element, unsigned) { is_any |= !isfinite(Type::widen(element)); });
  if (is_any) *found = 1;  // all that write it write the same
}

template <class Type>
__global__ void sum_squares_kernel(const __grid_constant__ Chunks chunks, double* partials) {
  double sums[kVectors] = {};  // several, so that an addition need not wait for the one before
  visit_each<Type, false>(chunks, [&](typename Type::Stored element, unsigned which) {
    const auto value = static_cast<double>(Type::widen(element));
    sums[which] = fma(value, value, sums[which]);
  });
  double sum = 0;
  for (unsigned k = 0; k < kVectors; ++k) sum += sums[k];
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void sum_kernel(const double* partials, std::size_t count, double* result) {
  const double sum = total_of(partials, count);
  if (threadIdx.x == 0) *result = sum;
}

__global__ void norm_kernel(const double* partials, std::size_t count, double* result) {
  const double norm = norm_of(partials, count);
  if (threadIdx.x == 0) *result = norm;
}

template <class Type>
__global__ void clip_kernel(const __grid_constant__ Chunks chunks, const double* partials, std::size_t count,
                            double norm_max, double* result) {
  const double norm = norm_of(partials, count);
  if (blockIdx.x == 0 && threadIdx.x == 0) *result = norm;
  if (!(norm > norm_max) || isinf(norm)) return;
  const auto factor = static_cast<typename Type::Wide>(norm_max / norm);
  change_each<Type>(chunks, [factor](typename Type::Wide value) { return value * factor; });
}

constexpr unsigned kWide = kVectorBytes / sizeof(unsigned short);  // elements of 16 bits in a vector
constexpr unsigned kWidePart = kVectorBytes / sizeof(float);       // elements of float32 in one

__device__ std::size_t first_index() { return static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x; }
__device__ std::size_t stride() { return static_cast<std::size_t>(gridDim.x) * kThreads; }

// vectors: of 16 bits, from the start; what follows goes one by one.
template <class Type>
__global__ void narrow_kernel(const float* from, unsigned short* to, std::size_t count, std::size_t vectors) {
  for (std::size_t i = first_index(); i < vectors; i += stride()) {
    const uint4 loaded[2] = {reinterpret_cast<const uint4*>(from)[2 * i],
                             reinterpret_cast<const uint4*>(from)[2 * i + 1]};
    float wide[kWide];
    std::memcpy(wide, loaded, sizeof wide);
    unsigned short halves[kWide];
#pragma unroll
    for (unsigned k = 0; k < kWide; ++k) halves[k] = Type::narrow(wide[k]);
    uint4 stored;
    std::memcpy(&stored, halves, sizeof stored);
    reinterpret_cast<uint4*>(to)[i] = stored;
  }
  for (std::size_t i = vectors * kWide + first_index(); i < count; i += stride()) to[i] = Type::narrow(from[i]);
}

// parts: of 4 elements, from the start; the rest goes one by one. With 8 elements, a thread would store two vectors,
// and neighbouring threads would not store neighbouring vectors.
template <class Type>
__global__ void widen_kernel(const unsigned short* from, float* to, std::size_t count, std::size_t parts) {
  for (std::size_t first = first_index(); first < parts; first += kVectors * stride()) {
    uint2 loaded[kVectors];
#pragma unroll
    for (unsigned k = 0; k < kVectors; ++k) {
      const std::size_t i = first + k * stride();
      if (i < parts) loaded[k] = reinterpret_cast<const uint2*>(from)[i];
    }
#pragma unroll
    for (unsigned k = 0; k < kVectors; ++k) {
      const std::size_t i = first + k * stride();
      if (i >= parts) break;
      unsigned short halves[kWidePart];
      std::memcpy(halves, &loaded[k], sizeof halves);
      float wide[kWidePart];
#pragma unroll
      for (unsigned n = 0; n < kWidePart; ++n) wide[n] = Type::widen(halves[n]);
      uint4 stored;
      std::memcpy(&stored, wide, sizeof stored);
      reinterpret_cast<uint4*>(to)[i] = stored;
    }
  }
  for (std::size_t i = parts * kWidePart + first_index(); i < count; i += stride()) to[i] = Type::widen(from[i]);
}

constexpr unsigned kElements = 4;  // that a thread loads before it uses the first
constexpr std::size_t kElementsOfChunk = kThreads * kElements;

// The pieces cut into chunks, which blocks take in turns.
struct PieceChunks {
  Piece pieces[kPiecesAtOnce];
  unsigned ends[kPiecesAtOnce];  // by piece: how many chunks it has, and those before it
  unsigned total;
};

PieceChunks chunks_of(const PieceBatch& batch) {
  PieceChunks chunks{};
  for (int i = 0; i < batch.count; ++i) {
    chunks.pieces[i] = batch.pieces[i];
    chunks.total += static_cast<unsigned>((batch.pieces[i].count + kElementsOfChunk - 1) / kElementsOfChunk);
    chunks.ends[i] = chunks.total;
  }
  return chunks;
}

__device__ void update_one(const tensor::AdamWNumbers& its, bool, float g, float& p, float& m, float& v) {
  const float gradient = g * its.scale;
  m += its.new_part * (gradient - m);
  v = its.beta2 * v + its.square_part * gradient * gradient;
  p = p * its.kept - its.rate * m / (sqrtf(v) / its.correction + its.epsilon);
}

__device__ void update_one(const tensor::SgdNumbers& its, bool has_momentum, float g, float& p, float& m, float&) {
  const float gradient = g * its.scale + its.decay * p;
  if (!has_momentum) {
    p -= its.rate * gradient;
    return;
  }
  m = its.old_part * m + gradient;
  p -= its.rate * (its.nesterov ? gradient + its.momentum * m : m);
}

// Pieces begin anywhere, so elements go one by one: neighbouring threads have neighbouring ones.
template <class Type, class Numbers>
__global__ void update_kernel(const __grid_constant__ PieceChunks chunks, const Numbers numbers) {
  using Stored = typename Type::Stored;
  unsigned which = 0;
  for (unsigned chunk = blockIdx.x; chunk < chunks.total; chunk += gridDim.x) {
    while (chunk >= chunks.ends[which]) ++which;
    const Piece its = chunks.pieces[which];
    const unsigned number = chunk - (which == 0 ? 0 : chunks.ends[which - 1]);
    const std::size_t first = static_cast<std::size_t>(number) * kElementsOfChunk + threadIdx.x;
    float p[kElements], m[kElements], v[kElements];
    Stored g[kElements];
#pragma unroll
    for (unsigned k = 0; k < kElements; ++k) {
      const std::size_t i = first + k * kThreads;
      if (i >= its.count) break;
      p[k] = its.p[i];
      g[k] = static_cast<const Stored*>(its.g)[i];
      m[k] = its.m == nullptr ? 0 : its.m[i];
      v[k] = its.v == nullptr ? 0 : its.v[i];
    }
#pragma unroll
    for (unsigned k = 0; k < kElements; ++k) {
      const std::size_t i = first + k * kThreads;
      if (i >= its.count) break;
      update_one(numbers, its.m != nullptr, Type::widen(g[k]), p[k], m[k], v[k]);
      its.p[i] = p[k];
      if (its.m != nullptr) its.m[i] = m[k];
      if (its.v != nullptr) its.v[i] = v[k];
      if (its.rounded != nullptr) static_cast<Stored*>(its.rounded)[i] = Type::narrow(p[k]);
    }
  }
}

template <class Numbers>
cudaError_t update_pieces(const PieceBatch& batch, const Numbers& numbers, cudaStream_t stream) {
  return with_type(batch.type, [&](auto type) {
    const PieceChunks chunks = chunks_of(batch);
    return launch(update_kernel<decltype(type), Numbers>, std::min(chunks.total, kBlocksMax), stream, chunks, numbers);
  });
}

// Of two arrays, where both may be read by vectors.
std::size_t vectors_of(const void* one, const void* other, std::size_t count) {
  const auto both = reinterpret_cast<std::uintptr_t>(one) | reinterpret_cast<std::uintptr_t>(other);
  return both % kVectorBytes == 0 ? count / kWide : 0;
}

unsigned blocks_for(std::size_t vectors, std::size_t count) {
  const std::size_t threads = vectors > 0 ? vectors : count;
  return static_cast<unsigned>(std::min<std::size_t>((threads + kThreads - 1) / kThreads, kBlocksMax));
}

}  // namespace

cudaError_t scale(const Batch& batch, double factor, const std::int32_t* unless, cudaStream_t stream) {
  return with_type(batch.type, [&](auto type) {
    using Type = decltype(type);
    const Chunks chunks = chunks_of<typename Type::Stored>(batch);
    return launch(scale_kernel<Type>, std::min(chunks.total, kBlocksMax), stream, chunks, factor, unless);
  });
}

cudaError_t clamp(const Batch& batch, double limit, cudaStream_t stream) {
  return with_type(batch.type, [&](auto type) {
    using Type = decltype(type);
    const Chunks chunks = chunks_of<typename Type::Stored>(batch);
    return launch(clamp_kernel<Type>, std::min(chunks.total, kBlocksMax), stream, chunks, limit);
  });
}

cudaError_t find_non_finite(const Batch& batch, std::int32_t* found, cudaStream_t stream) {
  return with_type(batch.type, [&](auto type) {
    using Type = decltype(type);
    const Chunks chunks = chunks_of<typename Type::Stored>(batch);
    return launch(find_non_finite_kernel<Type>, std::min(chunks.total, kBlocksMax), stream, chunks, found);
  });
}

cudaError_t sum_squares(const Batch& batch, double* partials, cudaStream_t stream) {
  return with_type(batch.type, [&](auto type) {
    using Type = decltype(type);
    const Chunks chunks = chunks_of<typename Type::Stored>(batch);
    return launch(sum_squares_kernel<Type>, static_cast<unsigned>(kPartials), stream, chunks, partials);
  });
}

cudaError_t sum(const double* partials, std::size_t count, double* result, cudaStream_t stream) {
  return launch(sum_kernel, 1, stream, partials, count, result);
}

cudaError_t norm(const double* partials, std::size_t count, double* result, cudaStream_t stream) {
  return launch(norm_kernel, 1, stream, partials, count, result);
}

cudaError_t clip(const Batch& batch, const double* partials, std::size_t count, double norm_max, double* result,
                 cudaStream_t stream) {
  return with_type(batch.type, [&](auto type) {
    using Type = decltype(type);
    const Chunks chunks = chunks_of<typename Type::Stored>(batch);
    return launch(clip_kernel<Type>, std::min(chunks.total, kBlocksMax), stream, chunks, partials, count, norm_max,
                  result);
  });
}

cudaError_t narrow(const float* from, void* to, std::size_t count, DataType type, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return with_half_type(type, [&](auto half) {
    const std::size_t vectors = vectors_of(from, to, count);
    return launch(narrow_kernel<decltype(half)>, blocks_for(vectors, count), stream, from,
                  static_cast<unsigned short*>(to), count, vectors);
  });
}

cudaError_t widen(const void* from, float* to, std::size_t count, DataType type, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return with_half_type(type, [&](auto half) {
    const std::size_t parts = vectors_of(from, to, count) * (kWide / kWidePart);
    return launch(widen_kernel<decltype(half)>, blocks_for(parts, count), stream,
                  static_cast<const unsigned short*>(from), to, count, parts);
  });
}

cudaError_t update(const PieceBatch& batch, const tensor::AdamWNumbers& numbers, cudaStream_t stream) {
  return update_pieces(batch, numbers, stream);
}

cudaError_t update(const PieceBatch& batch, const tensor::SgdNumbers& numbers, cudaStream_t stream) {
  return update_pieces(batch, numbers, stream);
}

}  // namespace ddp::nccl_backend::kernels
