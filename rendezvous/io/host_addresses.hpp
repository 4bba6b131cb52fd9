// The addresses of a host, for those who may wait for them.
//
// Threads: any.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "rendezvous/io/cut.hpp"

namespace ddp::io {

struct HostAddresses {
  std::vector<std::string> addresses;  // as getnameinfo() writes them, in the order in which they are to be tried
  std::string error;                   // why there is none
};

// Of a name, or of a text that is an address already. A resolver can take longer than any deadline, and can't be
// interrupted: it runs in a thread of its own, which is left to itself at the end. Throws AbortedError where `cut`,
// unless null, is cut.
HostAddresses addresses_of_host(const std::string& host, std::chrono::steady_clock::time_point end, const Cut* cut);

}  // namespace ddp::io
