// Goes through the batches of a sampler, and can tell and take back the position for a checkpoint.
//
//   ddp::SamplerCursor cursor(ddp::DistributedSampler({50'000, world.size(), world.rank()}), 8, ddp::LastBatch::keep);
//   if (resumed) cursor.restore(position_from_the_checkpoint);      // perhaps of a run with more or fewer ranks
//   for (; cursor.state().epoch < epochs; cursor.next_epoch()) {
//     for (auto batch = cursor.next_batch(); !batch.empty(); batch = cursor.next_batch()) {
//       train(batch);
//       if (is_time_for_a_checkpoint) save(cursor.state());         // the same on all ranks
//     }
//   }
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ddp/error.hpp"
#include "ddp/sampling.hpp"

namespace ddp {
inline namespace DDP_ABI {

// A position in the batches of a sampler; an example is at the top of this file.
//
// Sampler: DistributedSampler, EvaluationSampler, WeightedSampler, ChunkedSampler, or another class with their start(),
//          after(), and indices() of a position.
// Memory:  this rank's indices of the rest of the epoch.
// Threads: one at a time.
template <class Sampler>
class SamplerCursor {
 public:
  // Stands before the first sample of epoch 0. Throws InvalidArgument for a batch_size (samples, per rank) of 0.
  SamplerCursor(Sampler sampler, std::size_t batch_size, LastBatch last)
      : sampler_(std::move(sampler)), batch_size_(batch_size), last_(last) {
    if (batch_size_ == 0) throw InvalidArgument("batches of 0 samples\nwhere: SamplerCursor\ntry:   a size above 0");
    restore(sampler_.start(0));
  }

  // This rank's next batch; empty if it has none left in the epoch. Every rank calls it equally often: each call counts
  // as a batch of every rank. If ranks have unequal counts (Tail::uneven), is_over() tells all ranks alike when to
  // stop.
  std::vector<std::int64_t> next_batch() {
    position_ = sampler_.after(position_, batch_size_);
    const std::size_t count = std::min(batch_size_, indices_.size() - next_);
    const std::size_t first = next_;
    next_ += count;
    const bool is_dropped = count < batch_size_ && last_ == LastBatch::drop;
    std::vector<std::int64_t> batch(is_dropped ? 0 : count);
    std::copy_n(indices_.data() + first, batch.size(), batch.data());
    return batch;
  }

  // Whether every sample of the epoch is taken. The same on all ranks. Before it is true there may be one more batch,
  // which is empty on all ranks, if the samples that are left are dropped.
  [[nodiscard]] bool is_over() const { return position_.taken == position_.sample_count; }

  // Goes to the first sample of the next epoch, also from the middle of this one.
  void next_epoch() { restore(sampler_.start(position_.epoch + 1)); }

  // The position behind the batches that next_batch() has returned, the same on all ranks. A program that fetches
  // batches ahead keeps the state beside each batch, and saves that of the batch which it trained last.
  SamplerPosition state() const { return position_; }

  // Goes to a position. Throws what Sampler::indices() throws for it, and stays where it is then.
  void restore(const SamplerPosition& position) {
    indices_ = sampler_.indices(position);
    next_ = 0;
    position_ = position;
  }

 private:
  Sampler sampler_;
  std::size_t batch_size_;
  LastBatch last_;
  SamplerPosition position_;
  std::vector<std::int64_t> indices_;  // from the restored position to the end of the epoch
  std::size_t next_ = 0;               // among indices_
};

}  // namespace DDP_ABI
}  // namespace ddp
