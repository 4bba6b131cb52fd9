// From a user's timeout to the end of a wait; a negative one is none at all.
#pragma once

#include <algorithm>
#include <chrono>

#include "base/deadline.hpp"

namespace ddp::process_group {

constexpr std::chrono::hours kTimeoutMax{24 * 365};  // what is longer would overflow the clock, and is "for ever"

inline base::Deadline deadline_after(std::chrono::milliseconds timeout,
                                     base::Deadline::TimePoint now = std::chrono::steady_clock::now()) {
  return {now, now + std::clamp<std::chrono::milliseconds>(timeout, std::chrono::milliseconds(0), kTimeoutMax)};
}

}  // namespace ddp::process_group
