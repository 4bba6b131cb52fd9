// Which of a machine's devices a process sees, by CUDA_VISIBLE_DEVICES. Source: CUDA C++ programming guide, "CUDA
// environment variables".
//
// Pure.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace ddp::fake_gpu {

// "GPU-46414b45-0000-0000-0000-000000000003": "FAKE", and the number.
std::string uuid_text(int physical_device);
std::array<char, 16> uuid_bytes(int physical_device);

// Numbers of the machine's devices, in the order in which the process counts them. `variable`: null where it is not
// set. Entries are indices, or the first characters of a uuid; what follows the first invalid entry is invisible.
std::vector<int> visible_devices(const char* variable, int devices);

}  // namespace ddp::fake_gpu
