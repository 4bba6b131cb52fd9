#include "tests/fake_gpu/memory_table.hpp"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

#include "tests/fake_gpu/ledger.hpp"

namespace ddp::fake_gpu {

namespace {

constexpr std::size_t kAlignment = 512;  // cudaMalloc's on all devices of today
constexpr int kRubbish = 0xcb;

struct Table {
  std::mutex mutex;
  std::map<std::uintptr_t, Block> blocks;  // by their begin
};

// Never destroyed: streams may still be at work when the process exits.
Table& table() {
  static Table& one = *new Table;
  return one;
}

}  // namespace

void* allocate(const char* made_by, int device, std::size_t bytes) {
  void* memory = nullptr;
  if (::posix_memalign(&memory, kAlignment, bytes) != 0) return nullptr;
  std::memset(memory, kRubbish, bytes);
  Table& at = table();
  const std::lock_guard lock(at.mutex);
  at.blocks[reinterpret_cast<std::uintptr_t>(memory)] = {.made_by = made_by, .device = device, .bytes = bytes};
  made(made_by);
  return memory;
}

bool release(const char* made_by, void* memory) {
  Table& at = table();
  {
    const std::lock_guard lock(at.mutex);
    const auto found = at.blocks.find(reinterpret_cast<std::uintptr_t>(memory));
    if (found == at.blocks.end() || found->second.made_by != made_by) return false;
    at.blocks.erase(found);
  }
  gone(made_by);
  std::free(memory);
  return true;
}

std::optional<Block> block_of(const void* memory, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  Table& at = table();
  const std::lock_guard lock(at.mutex);
  const auto next = at.blocks.upper_bound(begin);
  if (next == at.blocks.begin()) return std::nullopt;
  const auto& [block_begin, block] = *std::prev(next);
  const std::uintptr_t offset = begin - block_begin;
  const bool inside = offset < block.bytes && bytes <= block.bytes - offset;
  return inside ? std::optional(block) : std::nullopt;
}

void release_all() {
  Table& at = table();
  const std::lock_guard lock(at.mutex);
  for (const auto& [begin, block] : at.blocks) std::free(reinterpret_cast<void*>(begin));
  at.blocks.clear();
}

}  // namespace ddp::fake_gpu
