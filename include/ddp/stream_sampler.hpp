// Which samples of a stream a rank takes, where nobody knows how long the stream is, or it has no end.
//
// Samples are numbered 0, 1, 2, ... in the order of the stream. Each `window` consecutive samples are shuffled, and the
// ranks take the samples of that order in turn. So a sample comes at most `window` - 1 places from its own, and a
// reader that can only go forward keeps all samples of the present window, because next() tells only the next few.
//
//   ddp::StreamSampler sampler({world.size(), world.rank(), /*seed=*/7, /*window=*/1024});
//   while (!sampler.is_over()) {                               // the same on all ranks
//     const auto batch = sampler.next(8);
//     std::int64_t length = reader.read(batch);                // of the stream if its end was met, else INT64_MAX
//     length = ddp::all_reduce(world, length, ddp::ReduceOp::min);
//     if (length != INT64_MAX) sampler.end_at(length);
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ddp/export.hpp"
#include "ddp/sampling.hpp"

namespace ddp {
inline namespace DDP_ABI {

// Options of a StreamSampler.
struct StreamSamplerOptions {
  int replicas = 1;        // ranks that share the stream; >= 1
  int rank = 0;            // 0 <= rank < replicas
  std::uint64_t seed = 0;  // the same on all ranks
  // 1 to 2^27 samples that are shuffled together, the same on all ranks; 1 keeps the order of the stream.
  std::size_t window = 1;
};

// Gives this rank its samples of a stream; an example is at the top of this file.
//
// Memory:  8 bytes for each sample of a window.
// Threads: one at a time.
class DDP_EXPORT StreamSampler {
 public:
  // Stands before the first sample of epoch 0. Throws InvalidArgument where the options are out of range.
  explicit StreamSampler(const StreamSamplerOptions& options);

  // The next `count` (> 0) samples of this rank. Every rank calls it equally often, with the same count. Until
  // end_at(), always `count` of them, though the stream may be over; the caller leaves out those behind its end. After
  // end_at(), fewer where few are left, with ranks that differ by one sample; at last none.
  // Throws InvalidArgument for a count of 0, or beyond the sample 2^62.
  std::vector<std::int64_t> next(std::size_t count);

  // Says how many samples the stream has (1 to 2^62), once the ranks have agreed on it. Every rank calls it between the
  // same two calls of next(). The samples that are left are shared anew: each is taken once. Throws InvalidArgument if
  // it was called with another length in this epoch.
  void end_at(std::uint64_t length);

  // Whether no rank gets another sample. The same on all ranks; false until end_at().
  [[nodiscard]] bool is_over() const;

  // Goes to the first sample of the next epoch: the stream begins anew, with another order and an unknown length.
  void next_epoch();

  // The position behind what next() has returned, the same on all ranks. With it, a run with any number of ranks goes
  // on: no sample is repeated or left out.
  SamplerPosition state() const { return position_; }

  // Goes to a position. Throws InvalidArgument for one of another seed, window or kind of sampler, and stays where it
  // is then.
  void restore(const SamplerPosition& position);

 private:
  std::int64_t sample_at(std::uint64_t place);
  void pass_over_absent_samples();  // places of the last window whose samples are behind the end of the stream
  SamplerPosition start(std::uint64_t epoch) const;

  StreamSamplerOptions options_;
  SamplerPosition position_;
  std::vector<std::int64_t> shuffled_;  // the samples of one window; empty before the first
  std::uint64_t shuffled_window_ = 0;   // whose number this is
};

}  // namespace DDP_ABI
}  // namespace ddp
