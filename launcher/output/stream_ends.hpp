// Both ends of the way that a worker's output takes: a pipe, or a pseudo-terminal.
#pragma once

#include <sys/ioctl.h>

#include <optional>

#include "rendezvous/io/unique_fd.hpp"

namespace ddp::launcher {

struct StreamEnds {
  io::UniqueFd agent;   // to read from; does not block
  io::UniqueFd worker;  // to be the worker's stdout or stderr
};

// Throw std::system_error where descriptors run out.
StreamEnds open_pipe();
StreamEnds open_terminal(const std::optional<winsize>& size);

}  // namespace ddp::launcher
