// The one place where elastic state touches memory: between the user's memory, or that of a group, and its own copies.
// Another device brings its own form of these functions.
//
// Threads: any.
#pragma once

#include <cstddef>

#include "ddp/memory.hpp"

namespace ddp::elastic {

// Whether the functions below reach this device's memory.
bool is_supported(Device device);

void copy_from(std::byte* to, const void* from, std::size_t bytes, Device device);  // of the device
void copy_to(void* to, const std::byte* from, std::size_t bytes, Device device);

}  // namespace ddp::elastic
