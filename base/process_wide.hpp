// The one T of this process, made when it is first asked for and never destroyed, because threads may use it until the
// very end. A forked child makes its own: in its copy of the parent's a lock may be held for ever.
//
// Threads: any.
#pragma once

#include <atomic>
#include <memory>

#include "base/fork_guard.hpp"

namespace ddp::base {

// Throws what T() throws, and Error where ForkGuard does.
template <class T>
T& process_wide() {
  struct Holder {
    ForkGuard guard;
    T value;
    Holder* of_parent = nullptr;  // so that a leak checker finds it
  };
  static std::atomic<Holder*> present{nullptr};
  Holder* holder = present.load(std::memory_order_acquire);
  if (holder != nullptr && !holder->guard.in_forked_child()) return holder->value;
  auto made = std::make_unique<Holder>();
  made->of_parent = holder;
  if (present.compare_exchange_strong(holder, made.get())) return made.release()->value;
  return holder->value;  // another thread's
}

}  // namespace ddp::base
