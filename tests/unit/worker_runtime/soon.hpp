// A deadline for what must happen. Only a failing test waits for it.
#pragma once

#include <chrono>

#include "base/deadline.hpp"

namespace ddp::test {

inline constexpr std::chrono::seconds kPatience{60};

inline base::Deadline soon() {
  const auto now = std::chrono::steady_clock::now();
  return {now, now + kPatience};
}

}  // namespace ddp::test
