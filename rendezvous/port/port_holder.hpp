// Who has a port of this host, for an error message.
#pragma once

#include <cstdint>
#include <string>

namespace ddp::port {

// "pid 4711 (python3 train.py)", as far as /proc shows it to this user; else "a process of another user, ..." or empty
// where nobody listens there. Reads all of /proc, so it is for when something has failed.
std::string holder_of(std::uint16_t port);

}  // namespace ddp::port
