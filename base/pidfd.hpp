// A descriptor for a process: names that process and no later one of its number, and polls readable once it has ended.
#pragma once

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/unique_fd.hpp"

namespace ddp::base {

// Empty, with errno, where there is no such process or no descriptor left. Linux 5.3 or newer.
inline UniqueFd open_pidfd(pid_t pid) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

}  // namespace ddp::base
