// XXH3 with 64 bits, of blocks of 1 KiB: a warp has a block. Its 16 stripes of 64 bytes lie beside each other in the
// warp's threads: each thread has 16 bytes of two stripes, so that sums over the stripes go from thread to thread.
//
// Source: https://github.com/Cyan4973/xxHash, XXH3_hashLong_64b_internal() with a length of 1024.
#include "worker_runtime/backends/nccl/hash_kernel.hpp"

#include <algorithm>
#include <cstddef>

#include "worker_runtime/backends/nccl/kernel_launch.cuh"

namespace ddp::nccl_backend::kernels {

namespace {

using Word = unsigned long long;  // that atomicAdd() takes

constexpr unsigned kWarp = 32;
constexpr unsigned kWarps = kThreads / kWarp;
constexpr std::size_t kBlockBytes = 1024;  // tensor::kHashBlock
constexpr unsigned kVectorBytes = 16;
constexpr unsigned kLoads = kBlockBytes / (kWarp * kVectorBytes);  // of a thread for a block
constexpr unsigned kThreadsOfStripe = 4;
constexpr unsigned kBlocksOfWarp = 2;  // that are loaded before the first is used
constexpr unsigned kBlocksOfChunk = kWarps * kBlocksOfWarp;
constexpr unsigned kBlocksMax = 2112;  // 16 for each multiprocessor of an H100

constexpr Word kPrime32[] = {0x9e3779b1, 0x85ebca77, 0xc2b2ae3d};
constexpr Word kPrime64[] = {0x9e3779b185ebca87, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9, 0x85ebca77c2b2ae63,
                             0x27d4eb2f165667c5};

constexpr Word kOfLength = kBlockBytes * kPrime64[0];

__constant__ unsigned char kSecret[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4,
    0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
    0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43,
    0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
    0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
    0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78,
    0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16,
    0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};
constexpr unsigned kLastStripeAt = 192 - 64 - 7;  // in the secret
constexpr unsigned kMergeAt = 11;

__device__ Word secret_at(unsigned offset) {
  Word word = 0;
  for (unsigned i = 0; i < sizeof word; ++i) word |= static_cast<Word>(kSecret[offset + i]) << 8 * i;
  return word;
}

// The two lanes of eight that a thread adds up.
struct Lanes {
  Word first, second;
};

// What this thread needs to hash any block.
struct Keys {
  Lanes of_load[kLoads], merge, start;
};

__device__ Keys keys_of_thread() {
  constexpr Word kStart[] = {kPrime32[2], kPrime64[0], kPrime64[1], kPrime64[2],
                             kPrime64[3], kPrime32[1], kPrime64[4], kPrime32[0]};
  const unsigned thread = threadIdx.x % kWarp, lane = thread % kThreadsOfStripe * 2;
  Keys keys{};
  for (unsigned load = 0; load < kLoads; ++load) {
    const unsigned stripe = (load * kWarp + thread) / kThreadsOfStripe;
    const unsigned at = (stripe == kBlockBytes / 64 - 1 ? kLastStripeAt : stripe * 8) + lane * 8;
    keys.of_load[load] = {secret_at(at), secret_at(at + 8)};
  }
  keys.merge = {secret_at(kMergeAt + lane * 8), secret_at(kMergeAt + lane * 8 + 8)};
#pragma unroll
  for (unsigned i = 0; i < 8; i += 2) {
    if (i == lane) keys.start = {kStart[i], kStart[i + 1]};
  }
  return keys;
}

__device__ Word product_of_halves(Word word) { return (word & 0xffffffff) * (word >> 32); }

__device__ Word avalanche(Word word) {
  word = (word ^ (word >> 37)) * 0x165667919e3779f9;
  return word ^ (word >> 32);
}

// XXH3 of the block that the threads of a warp have loaded.
__device__ Word checksum_of(const Keys& keys, const uint4 (&loaded)[kLoads]) {
  Lanes sums{};
#pragma unroll
  for (unsigned load = 0; load < kLoads; ++load) {
    const Word first = static_cast<Word>(loaded[load].y) << 32 | loaded[load].x;
    const Word second = static_cast<Word>(loaded[load].w) << 32 | loaded[load].z;
    sums.first += product_of_halves(first ^ keys.of_load[load].first) + second;
    sums.second += product_of_halves(second ^ keys.of_load[load].second) + first;
  }
#pragma unroll
  for (unsigned other = kWarp / 2; other >= kThreadsOfStripe; other /= 2) {
    sums.first += __shfl_xor_sync(0xffffffff, sums.first, other);
    sums.second += __shfl_xor_sync(0xffffffff, sums.second, other);
  }
  const Word first = (sums.first + keys.start.first) ^ keys.merge.first;
  const Word second = (sums.second + keys.start.second) ^ keys.merge.second;
  Word merged = (first * second) ^ __umul64hi(first, second);
#pragma unroll
  for (unsigned other = kThreadsOfStripe / 2; other > 0; other /= 2) {
    merged += __shfl_xor_sync(0xffffffff, merged, other);
  }
  return avalanche(merged + kOfLength);
}

// tensor::hash_of_block()
__device__ Word hash_of_block(Word checksum, Word number) {
  return avalanche(checksum + (number + 1) * 0x9e3779b97f4a7c15);
}

// 16 bytes at an offset; those behind the end are zeros.
__device__ uint4 load(const Range& range, std::size_t offset) {
  const auto* const from = static_cast<const unsigned char*>(range.data) + offset;
  const auto address = reinterpret_cast<std::uintptr_t>(from);
  if (offset + kVectorBytes <= range.count) {
    if (address % kVectorBytes == 0) return *reinterpret_cast<const uint4*>(from);
    if (address % sizeof(unsigned) == 0) {
      const auto* const words = reinterpret_cast<const unsigned*>(from);
      return make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
  unsigned words[4] = {};
  for (unsigned i = 0; i < kVectorBytes; ++i) {
    if (offset + i < range.count) words[i / 4] |= static_cast<unsigned>(from[i]) << i % 4 * 8;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// The ranges cut into chunks, which blocks of threads take in turns.
struct HashChunks {
  Range ranges[kRangesAtOnce];
  unsigned ends[kRangesAtOnce];  // by range: how many chunks it has, and those before it
  unsigned total;
};

HashChunks hash_chunks_of(const Batch& batch) {
  constexpr std::size_t kChunkBytes = kBlocksOfChunk * kBlockBytes;
  HashChunks chunks{};
  for (int i = 0; i < batch.count; ++i) {
    chunks.ranges[i] = batch.ranges[i];
    chunks.total += static_cast<unsigned>((batch.ranges[i].count + kChunkBytes - 1) / kChunkBytes);
    chunks.ends[i] = chunks.total;
  }
  return chunks;
}

__global__ void hash_kernel(const __grid_constant__ HashChunks chunks, Word* hashes) {
  const Keys keys = keys_of_thread();
  const unsigned warp = threadIdx.x / kWarp, thread = threadIdx.x % kWarp;
  unsigned which = 0;
  Word sum = 0;  // of the blocks of range `which` so far
  const auto end_range = [&] {
    if (thread == 0 && sum != 0) atomicAdd(hashes + which, sum);
    sum = 0;
  };
  for (unsigned chunk = blockIdx.x; chunk < chunks.total; chunk += gridDim.x) {
    if (chunk >= chunks.ends[which]) {
      end_range();
      while (chunk >= chunks.ends[which]) ++which;
    }
    const Range range = chunks.ranges[which];
    const std::size_t number = chunk - (which == 0 ? 0 : chunks.ends[which - 1]);
    const std::size_t first = number * kBlocksOfChunk + warp;
    uint4 loaded[kBlocksOfWarp][kLoads];
#pragma unroll
    for (unsigned k = 0; k < kBlocksOfWarp; ++k) {
#pragma unroll
      for (unsigned i = 0; i < kLoads; ++i) {
        const std::size_t offset = (first + k * kWarps) * kBlockBytes + (i * kWarp + thread) * kVectorBytes;
        loaded[k][i] = offset < range.count ? load(range, offset) : make_uint4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (unsigned k = 0; k < kBlocksOfWarp; ++k) {
      const std::size_t block = first + k * kWarps;
      if (block * kBlockBytes >= range.count) break;  // alike for the threads of a warp
      sum += hash_of_block(checksum_of(keys, loaded[k]), block);
    }
  }
  end_range();
}

}  // namespace

cudaError_t add_hashes(const Batch& batch, std::uint64_t* hashes, cudaStream_t stream) {
  static_assert(sizeof(Word) == sizeof *hashes);
  const HashChunks chunks = hash_chunks_of(batch);
  if (chunks.total == 0) return cudaSuccess;
  return launch(hash_kernel, std::min(chunks.total, kBlocksMax), stream, chunks, reinterpret_cast<Word*>(hashes));
}

}  // namespace ddp::nccl_backend::kernels
