// This host's own name, as messages and the other nodes are told it. Nothing is looked up.
#pragma once

#include <unistd.h>

#include <string>

namespace ddp::base {

inline std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

}  // namespace ddp::base
