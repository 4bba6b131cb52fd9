#include "tests/fake_gpu/nccl_handles.hpp"

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "tests/fake_gpu/ledger.hpp"
#include "tests/fake_gpu/nccl_log.hpp"

namespace ddp::fake_gpu {

namespace {

struct Entry {
  std::shared_ptr<Communicator> communicator;
  bool in_use = false;
};

struct Handles {
  std::mutex mutex;
  std::condition_variable left;
  std::uintptr_t next = 0x1000;  // never reused, so that a stale handle is refused
  std::map<abi::Comm, Entry> entries;
};

// Never destroyed: threads of communicators may still run when the process exits.
Handles& handles() {
  static Handles& one = *new Handles;
  return one;
}

}  // namespace

abi::Comm handle_of(std::shared_ptr<Communicator> communicator) {
  Handles& at = handles();
  const std::lock_guard lock(at.mutex);
  at.next += 16;
  const auto handle = reinterpret_cast<abi::Comm>(at.next);
  at.entries[handle] = {.communicator = std::move(communicator)};
  made("ncclComm");
  return handle;
}

Use::Use(abi::Comm handle) : handle_(handle) {
  Handles& at = handles();
  const std::lock_guard lock(at.mutex);
  const auto found = at.entries.find(handle);
  if (found == at.entries.end()) {
    set_last_error("there is no such communicator");
    return;
  }
  if (found->second.in_use) {
    std::fprintf(stderr, "fake NCCL: two threads are inside calls on one communicator, which NCCL forbids\n");
    std::abort();
  }
  found->second.in_use = true;
  communicator_ = found->second.communicator;
}

Use::Use(abi::Comm handle, Abort) : handle_(handle) {
  Handles& at = handles();
  std::unique_lock lock(at.mutex);
  const auto is_other_inside = [&] {
    const auto found = at.entries.find(handle);
    if (found == at.entries.end() || !found->second.in_use) return false;
    found->second.communicator->interrupt();
    return true;
  };
  at.left.wait(lock, [&] { return !is_other_inside(); });
  const auto found = at.entries.find(handle);
  if (found == at.entries.end()) {
    set_last_error("there is no such communicator");
    return;
  }
  found->second.in_use = true;
  communicator_ = found->second.communicator;
}

Use::~Use() {
  Handles& at = handles();
  const std::lock_guard lock(at.mutex);
  const auto found = at.entries.find(handle_);
  if (found != at.entries.end() && communicator_) found->second.in_use = false;
  at.left.notify_all();
}

void Use::forget_handle() {
  Handles& at = handles();
  const std::lock_guard lock(at.mutex);
  at.entries.erase(handle_);
  gone("ncclComm");
}

}  // namespace ddp::fake_gpu
