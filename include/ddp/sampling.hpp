// What the samplers share: batches, the rule for samples that do not divide by the ranks, and the position in an epoch.
//
// Every sampler makes one order of the epoch's samples, the same on all ranks. Rank r of n takes the places r, r + n,
// r + 2 n, ... of that order. When each rank has taken k samples, all ranks together have taken the first k * n places.
// So one number says which samples are taken, and any other number of ranks can go on from there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddp/export.hpp"

namespace ddp {
inline namespace DDP_ABI {

// What becomes of a batch that is not full, at the end of an epoch.
enum class LastBatch : std::uint8_t {
  keep,  // it is a batch of fewer samples
  drop   // it is left out
};

// What becomes of the last samples of an epoch if their number does not divide by the ranks.
enum class Tail : std::uint8_t {
  pad,     // the first samples of the order are taken once more, so that all ranks have equally many
  drop,    // the last samples are left out, so that all ranks have equally many
  uneven,  // each sample is taken once; the first ranks have one sample more than the others
};

// A point between two samples of an epoch. A plain struct of numbers: it can go into a checkpoint (to_string(), or its
// bytes), into ElasticState::add_struct(), or into a broadcast. Samplers make positions; see their start() and after().
//
// A position says nothing about the ranks, except for ChunkedSampler, which has `partitions` for that.
struct SamplerPosition {
  std::uint64_t seed = 0;          // of the sampler that made it
  std::uint64_t epoch = 0;         // from 0 on
  std::uint64_t taken = 0;         // places of the order that all ranks together have taken
  std::uint64_t sample_count = 0;  // places of the epoch's order; StreamSampler: 0 while the length is unknown
  std::uint64_t partitions = 1;    // of the epoch's order, see ChunkedSampler; 1 for the other samplers
  std::uint64_t order = 0;         // hash of all other options that make the order, such as weights

  [[nodiscard]] friend bool operator==(const SamplerPosition& a, const SamplerPosition& b) {
    return a.seed == b.seed && a.epoch == b.epoch && a.taken == b.taken && a.sample_count == b.sample_count &&
           a.partitions == b.partitions && a.order == b.order;
  }
  [[nodiscard]] friend bool operator!=(const SamplerPosition& a, const SamplerPosition& b) { return !(a == b); }
};

// "7-2-1024-50000-1-9f3a17c2b4d8e6f0": the fields in their order, in decimal; `order` as 16 hexadecimal digits.
// parse_sampler_position() is empty for any other text.
DDP_EXPORT std::string to_string(const SamplerPosition& position);
DDP_EXPORT std::optional<SamplerPosition> parse_sampler_position(const std::string& text);

// Cuts a rank's indices into batches of `batch_size`, which is > 0, else InvalidArgument.
DDP_EXPORT std::vector<std::vector<std::int64_t>> cut_batches(const std::vector<std::int64_t>& indices,
                                                              std::size_t batch_size, LastBatch last);

}  // namespace DDP_ABI
}  // namespace ddp
