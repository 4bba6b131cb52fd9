// Which errors of a connection say that it is closed.
#pragma once

#include <cerrno>

namespace ddp::base {

// `error` is an errno. By the other side, or by this host's kernel (`ss --kill`). Other errors leave open whether the
// other side lives.
constexpr bool says_connection_closed(int error) {
  return error == ECONNRESET || error == EPIPE || error == ECONNABORTED;
}

}  // namespace ddp::base
