#include "base/closed_in_child.hpp"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <system_error>

namespace ddp::base {

namespace {

// A table in blocks that are never freed, so that the child can walk it whatever other threads did at the fork. A slot
// holds a descriptor + 1.
struct Block {
  std::array<std::atomic<int>, 256> slots{};
  std::atomic<Block*> next{nullptr};
};
Block first_block;

void close_in_child() {
  for (Block* block = &first_block; block != nullptr; block = block->next.load()) {
    for (auto& slot : block->slots) {
      if (const int fd = slot.exchange(0) - 1; fd >= 0) ::close(fd);
    }
  }
}

}  // namespace

void close_in_forked_children(int fd) {
  static const int registered = ::pthread_atfork(nullptr, nullptr, close_in_child);
  if (registered != 0) throw std::system_error(registered, std::generic_category(), "pthread_atfork");
  for (Block* block = &first_block;; block = block->next.load()) {
    for (auto& slot : block->slots) {
      int empty = 0;
      if (slot.compare_exchange_strong(empty, fd + 1)) return;
    }
    if (block->next.load() == nullptr) {
      auto fresh = std::make_unique<Block>();
      Block* none = nullptr;
      if (block->next.compare_exchange_strong(none, fresh.get())) static_cast<void>(fresh.release());
    }
  }
}

void keep_in_forked_children(int fd) {
  for (Block* block = &first_block; block != nullptr; block = block->next.load()) {
    for (auto& slot : block->slots) {
      int held = fd + 1;
      if (slot.compare_exchange_strong(held, 0)) return;
    }
  }
}

}  // namespace ddp::base
