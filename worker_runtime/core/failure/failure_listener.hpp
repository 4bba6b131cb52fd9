// Who hears that a backend has found its group of no further use: see Backend::set_failure_listener().
//
// Threads: any. The listener itself must not call set().
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

namespace ddp::core {

class FailureListener {
 public:
  using Tell = std::function<void(const std::string& reason)>;

  // Empty: nobody. An earlier listener has returned, or is not called, once this returns. If the group has failed, the
  // new one is called before this returns.
  void set(Tell tell);

  // Calls the listener, without a lock. Once for a group.
  void tell(const std::string& reason);

 private:
  std::mutex mutex_;  // guards the rest
  std::condition_variable told_;
  Tell listener_;
  std::optional<std::string> reason_;
  bool is_telling_ = false;
};

}  // namespace ddp::core
