// Which samples a rank sees of a data set that lies on disk in chunks (shards, files, record groups): a rank reads few
// chunks at a time, and the order is random all the same.
//
// The order of an epoch is made in this way, the same on all ranks:
//   1. The chunks are shuffled, and laid end to end.
//   2. That line is cut into `partitions` parts of equal length, give or take one sample. A chunk that lies on a border
//      is in two of them.
//   3. In each partition, the samples of every `window_chunks` consecutive chunks are shuffled together.
//   4. The order takes one sample of each partition in turn.
// Rank r of n takes the places r, r + n, r + 2 n, ... of the order. If n divides `partitions`, these are all places of
// partitions / n partitions, so a rank reads window_chunks * partitions / n chunks at a time, and no other rank reads
// those (but for chunks on a border). With any other n every sample is still taken once, but ranks share chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ddp/export.hpp"
#include "ddp/sampling.hpp"

namespace ddp {
inline namespace DDP_ABI {

// Options of a ChunkedSampler.
struct ChunkedSamplerOptions {
  // Samples in each chunk, in the order of the data set: chunk 0 has the samples 0 to chunk_sizes[0] - 1. The same on
  // all ranks. Chunks may be empty, but not all.
  std::vector<std::size_t> chunk_sizes{};
  int replicas = 1;               // ranks that share the data set; >= 1
  int rank = 0;                   // 0 <= rank < replicas
  bool shuffle = true;            // a new order each epoch, made from seed and epoch; else no step shuffles
  std::uint64_t seed = 0;         // the same on all ranks
  std::size_t window_chunks = 1;  // >= 1; 1 shuffles within a chunk. More mixes better and keeps more chunks open
  // 0 to 2^20; 0 takes `replicas`. For a job whose number of ranks changes: a multiple of the numbers that it may have.
  std::uint64_t partitions = 0;
  Tail tail = Tail::pad;  // what becomes of samples that do not divide by `replicas`
};

// Chunks of `chunk_size` samples (> 0, else InvalidArgument), the last one perhaps smaller, `sample_count` in all.
DDP_EXPORT std::vector<std::size_t> equal_chunks(std::size_t sample_count, std::size_t chunk_size);

// Pure and immutable; any thread. Copies share the list of chunks.
//
// Memory: 8 bytes for each chunk; in indices() 8 bytes more, and 8 for each sample of the partitions that it needs.
class DDP_EXPORT ChunkedSampler {
 public:
  // Throws InvalidArgument where the options are out of range.
  explicit ChunkedSampler(const ChunkedSamplerOptions& options);

  // Indices that this rank sees in one epoch.
  std::size_t size() const;

  // This rank's indices of an epoch, size() of them, in order.
  std::vector<std::int64_t> indices(std::uint64_t epoch) const;

  // The position before the first sample of an epoch. Its `partitions` are those of the options.
  SamplerPosition start(std::uint64_t epoch) const;

  // The position after each rank has taken `count` samples more, at most the end of the epoch. Padding is not counted.
  SamplerPosition after(const SamplerPosition& position, std::size_t count) const;

  // This rank's indices from a position to the end of its epoch. The position may be of a run with another number of
  // ranks, or other `partitions`: this epoch goes on with the position's, and no sample is repeated or left out, except
  // by `tail`. Throws InvalidArgument for a position of another seed, other chunks, or another kind of sampler.
  std::vector<std::int64_t> indices(const SamplerPosition& from) const;

 private:
  class Chunks;

  std::shared_ptr<const Chunks> chunks_;
};

}  // namespace DDP_ABI
}  // namespace ddp
