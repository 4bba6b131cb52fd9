// How ranks of the fake NCCL meet: unix sockets with abstract addresses, so that nothing is left behind. Every wait
// ends when the communicator is aborted, and not before: nobody else has a deadline here.
//
// Threads: one for each socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/cut.hpp"
#include "base/unique_fd.hpp"

namespace ddp::fake_gpu {

enum class Outcome : std::uint8_t {
  done,
  aborted,
  peer_gone,  // its socket closed
  mismatch,   // a peer sent something else than was expected
};

// Throws std::system_error, where the address is taken already for instance.
base::UniqueFd listen_at(const std::string& address);

// Nothing where nobody listens there. Never waits: there is room for all ranks in the queue.
std::optional<base::UniqueFd> connect_to(const std::string& address);

Outcome accept_one(int listener, const base::Cut& abort, base::UniqueFd& accepted);
Outcome read_all(int socket, void* bytes, std::size_t count, const base::Cut& abort);
bool write_small(int socket, const void* bytes, std::size_t count);  // what fits into a socket that is empty

// Waits in poll() until one of these is readable; which one, or nothing after an abort.
std::optional<std::size_t> wait_readable(const std::vector<int>& sockets, const base::Cut& abort);

// Waits until the communicator is aborted; or so many milliseconds, which is false.
bool wait_abort(const base::Cut& abort, int milliseconds = -1);

}  // namespace ddp::fake_gpu
