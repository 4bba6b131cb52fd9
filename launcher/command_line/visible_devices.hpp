// The entries of CUDA_VISIBLE_DEVICES: indices, UUIDs (GPU-...), parts of a GPU (MIG-...).
#pragma once

#include <string>
#include <vector>

namespace ddp::launcher {

// In their order, without the spaces around them; what each names is the caller's to find out.
std::vector<std::string> entries_of_visible_devices(const std::string& cuda_visible_devices);

}  // namespace ddp::launcher
