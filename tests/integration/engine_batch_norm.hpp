// SyncBatchNorm beside PyTorch's batch normalisation of the joined batch.
#pragma once

#include <ddp/process_group.hpp>

#include <string>

namespace ddp::test {

// Collective, of two ranks: the largest difference on any rank from batch_norm.f32 in the folder, which
// tests/interop/engine_reference.py writes. Throws if there is none.
double batch_norm_difference(ProcessGroup world, const std::string& folder);

// As above, of 100 steps of training a network with a SyncBatchNorm layer in a DistributedDataParallel, and of
// batch_norm_training.f32: the outputs, the running statistics and the layer's gradients of each step, and the
// parameters at the end. The batch of a rank has another size in each step, and is empty in some.
double batch_norm_training_difference(ProcessGroup world, const std::string& folder);

}  // namespace ddp::test
