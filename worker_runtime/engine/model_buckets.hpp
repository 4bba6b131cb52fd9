// What a checkpoint keeps of a model: in which order, and with which caps, its buckets were rebuilt.
//
// Threads: that of the model.
#pragma once

#include <string>

#include "ddp/distributed_data_parallel.hpp"

namespace ddp::gradient_engine {

struct ModelBuckets {
  // On rank 0. Empty before the first rebuild is due, and while caps are being tried.
  static std::string text_of(const DistributedDataParallel& model);

  // Keeps what a text says for use_taken(), which may follow; an empty one says nothing. Throws CheckpointError for a
  // text of another number of parameters, or one that is damaged.
  static void take(const DistributedDataParallel& model, const std::string& text);

  // On all ranks alike, once all of them have taken the same text: the next rebuild is that of the text, and
  // begin_step() makes it.
  static void use_taken(const DistributedDataParallel& model) noexcept;
};

}  // namespace ddp::gradient_engine
