// Host memory of gradients that goes back to the system after each use.
//
// It is private memory, not shared memory: most systems have huge pages for private memory only. A write to a page that
// is new takes a fault, and a huge page takes one fault for 2 MiB.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <memory>

#include "ddp/memory.hpp"

namespace ddp::gradient_engine {

// Zeros. A page takes memory once it is written to. A forked child does not inherit the memory. Throws Error if the
// process has no address space for it.
std::shared_ptr<void> allocate_releasable(std::size_t bytes);

// Asks for huge pages where whole ones fit. `memory` is allocate_releasable()'s, and is released as a whole: the system
// keeps a huge page of which only a part is released.
void use_huge_pages(const MemoryRange& memory);

// Of memory of allocate_releasable(): gives whole pages back to the system, which are zero when they are read next, and
// writes zeros to the rest.
void release_to_system(const MemoryRange& memory);

}  // namespace ddp::gradient_engine
