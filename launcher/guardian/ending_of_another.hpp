// How a process ended whose parent is another process.
//
// Source: proc(5) (exit_code of /proc/PID/stat), the kernel's include/uapi/linux/pidfd.h (PIDFD_GET_INFO, Linux 6.15).
#pragma once

#include <sys/types.h>

#include <optional>

namespace ddp::launcher::guardian {

// The wait status of a process that has ended. `pidfd` and `pid` name the same one.
//
// Until its parent has called waitpid, any kernel tells. After that, Linux 6.15 and later do. Empty: not known, or it
// still runs.
std::optional<int> wait_status_of(int pidfd, pid_t pid);

}  // namespace ddp::launcher::guardian
