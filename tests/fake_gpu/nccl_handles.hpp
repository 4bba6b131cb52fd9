// Communicators by the handles that NCCL's callers hold, and the rule that NCCL has for its callers: one thread at a
// time inside a call on a communicator, except that an abort may end the call of another thread. The fake aborts the
// process if a caller breaks the rule.
//
// Threads: any.
#pragma once

#include <memory>

#include "tests/fake_gpu/nccl_communicator.hpp"

namespace ddp::fake_gpu {

abi::Comm handle_of(std::shared_ptr<Communicator> communicator);

// A call on a communicator, for its time.
class Use {
 public:
  explicit Use(abi::Comm handle);
  // For an abort: ends the call that another thread is in, and waits until it has returned.
  struct Abort {};
  Use(abi::Comm handle, Abort);
  ~Use();
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  // False for a handle that is none, any more: never given out, or destroyed, or aborted.
  explicit operator bool() const { return communicator_ != nullptr; }
  Communicator* operator->() const { return communicator_.get(); }

  // The handle is none from now on.
  void forget_handle();

 private:
  abi::Comm handle_;
  std::shared_ptr<Communicator> communicator_;
};

}  // namespace ddp::fake_gpu
