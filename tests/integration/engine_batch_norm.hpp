// SyncBatchNorm beside PyTorch's batch normalisation of the joined batch.
#pragma once

#include <ddp/process_group.hpp>

#include <string>

namespace ddp::test {

// Collective, of two ranks: the largest difference on any rank from batch_norm.f32 in the folder, which
// tests/interop/engine_reference.py writes. Throws if there is none.
double batch_norm_difference(ProcessGroup world, const std::string& folder);

}  // namespace ddp::test
