// Memory that the fakes gave out: host memory, known by its address, so that a foreign pointer is refused. Each block
// is an allocation of its own, so that AddressSanitizer sees an access beyond it. Contents start as rubbish.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace ddp::fake_gpu {

struct Block {
  std::string made_by;  // the call: "cudaMalloc", "cudaMallocHost", "ncclMemAlloc"
  int device = 0;       // the current one at that time
  std::size_t bytes = 0;

  bool on_device() const { return made_by != "cudaMallocHost"; }
};

// Null where there is no memory.
void* allocate(const char* made_by, int device, std::size_t bytes);
// False where `memory` is not the begin of a block that this call made.
bool release(const char* made_by, void* memory);

// The block that holds all these bytes. Nothing where they are not in one.
std::optional<Block> block_of(const void* memory, std::size_t bytes);

void release_all();

}  // namespace ddp::fake_gpu
