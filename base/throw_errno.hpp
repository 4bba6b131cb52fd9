// What a failed system call becomes.
#pragma once

#include <cerrno>
#include <string>
#include <system_error>

namespace ddp::base {

// Throws std::system_error with errno and what was called.
[[noreturn]] inline void throw_errno(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace ddp::base
