// What becomes of the memory of gradients on the host.
//
// Pure but for the memory given; any thread.
#pragma once

#include "ddp/memory.hpp"

namespace ddp::gradient_engine {

// Of shared memory: gives whole pages back to the system, which are zero when they are read next, and writes zeros to
// the rest.
void release_to_system(const MemoryRange& memory);

}  // namespace ddp::gradient_engine
