// The bytes of a safetensors file, into a file that its owner then commits.
#pragma once

#include <vector>

#include "ddp/checkpoint.hpp"
#include "worker_runtime/checkpoint/atomic_file.hpp"

namespace ddp::checkpoint {

// Throws CheckpointError as save_safetensors, InvalidArgument for a tensor that contradicts itself or lies on a GPU.
void write_safetensors(AtomicFile& file, const std::vector<NamedTensor>& tensors, const Metadata& metadata);

}  // namespace ddp::checkpoint
