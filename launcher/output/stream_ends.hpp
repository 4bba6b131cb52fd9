// Both ends of the way that a worker's output takes: a pipe, or a pseudo-terminal.
#pragma once

#include <sys/ioctl.h>

#include <cstddef>
#include <optional>

#include "base/unique_fd.hpp"

namespace ddp::launcher {

struct StreamEnds {
  base::UniqueFd agent;   // to read from; does not block
  base::UniqueFd worker;  // to be the worker's stdout or stderr
};

// Throw std::system_error where descriptors run out.
StreamEnds open_pipe();
StreamEnds open_terminal(const std::optional<winsize>& size);

// A terminal's size without some of its columns; as it is where there are no more than these.
winsize narrowed(winsize size, std::size_t columns);

}  // namespace ddp::launcher
