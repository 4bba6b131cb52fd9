// How much of a process's descriptors connections may take that have not said yet what they are.
//
// Half of them stays for those that have said hello, and for the process's own use.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstddef>

namespace ddp::base {

struct DescriptorRoom {
  std::size_t silent = 0;   // connections that have sent nothing
  std::size_t waiting = 0;  // that speak, but have not said hello: all agents of a large job come at once
  std::size_t met = 0;      // that have said hello
};

// Pure.
inline DescriptorRoom descriptor_room_of(rlim_t limit) {
  const auto eighth = static_cast<std::size_t>(limit / 8);
  return {std::clamp<std::size_t>(eighth, 8, 1'024), std::clamp<std::size_t>(3 * eighth, 24, 16'384), 4 * eighth};
}

// Of this process. Raise its limit first.
inline DescriptorRoom descriptor_room() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return descriptor_room_of(limit.rlim_cur);
}

}  // namespace ddp::base
