// Wakes whoever waits in poll or epoll, from any thread.
#pragma once

#include <sys/eventfd.h>

#include "base/throw_errno.hpp"
#include "base/unique_fd.hpp"

namespace ddp::base {

// Neither blocks nor outlives an exec. Throws std::system_error.
inline UniqueFd make_event() {
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) base::throw_errno("eventfd");
  return event;
}

// Readable from now on, until take_rings().
inline void ring(const UniqueFd& event) { static_cast<void>(::eventfd_write(event.get(), 1)); }

// Takes back what was rung, however often.
inline void take_rings(int event) {
  eventfd_t count = 0;
  static_cast<void>(::eventfd_read(event, &count));
}

}  // namespace ddp::base
