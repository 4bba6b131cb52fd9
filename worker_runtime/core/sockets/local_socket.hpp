// Messages between processes of one host and one user, each with at most one file descriptor: abstract unix sockets of
// the type SOCK_SEQPACKET. Used while the ranks of a group meet, and by nothing after.
//
// Threads: any, one at a time for each socket. Source: unix(7), cmsg(3).
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/deadline.hpp"
#include "base/unique_fd.hpp"
#include "ddp/error.hpp"

namespace ddp::core {

struct Message {
  enum class Kind : std::uint32_t {
    hello,      // follower to coordinator: this is `rank`, with the descriptor that own_end() makes
    greeting,   // coordinator to follower: the same of the coordinator
    peer,       // coordinator to follower: the same of another follower
    layout,     // coordinator to follower: with a file that says which ranks share a host, unless all share this one
    complete,   // coordinator to follower: all ranks are here; with the shared file, if there is one
    timed_out,  // follower to coordinator: it has given up
  };
  Kind kind = Kind::hello;
  int rank = 0;
  int pid = 0;
  base::UniqueFd fd;
};

// This process has no descriptor left for the one that came with a message.
class NoDescriptorLeft : public Error {
 public:
  using Error::Error;
};

// Each throws std::system_error, or Error where the deadline passes.

base::UniqueFd listen_locally(const std::string& name, int backlog);

// Waits without a deadline while the listener's backlog is full; has_room: throws then.
enum class Backlog { may_be_full, has_room };
base::UniqueFd connect_locally(const std::string& name, Backlog backlog = Backlog::may_be_full);

// The next connection of a process of this user; those of others are closed. Empty where there is none.
base::UniqueFd accept_locally(int listener);

uid_t uid_of_peer(int socket);

// Fails at the deadline too; `fd` is borrowed, -1 for none.
void send_message(int socket, const Message& message, int fd, base::Deadline& deadline);

// Empty where nothing is there yet. A closed connection, or a message that is none of ours, throws Error; a descriptor
// that can't be taken in throws NoDescriptorLeft.
std::optional<Message> receive_message(int socket);

// Waits until one of `polled` is ready, a signal comes or the deadline passes, whichever is first; the `revents` of
// what is not ready are 0. Throws Error where the system refuses so many descriptors, AbortedError where the deadline's
// Cut is cut.
void poll_until(std::span<pollfd> polled, const base::Deadline& deadline);

// Whether poll_until() found something to read, or an end or an error, which a read then tells.
inline bool is_readable(const pollfd& polled) { return polled.revents != 0; }

// A descriptor that polls readable once this process has ended: a pidfd or, where the kernel gives
// none (Linux before 5.3, some sandboxes), the output of a pipe. Throws std::system_error.
base::UniqueFd own_end();

}  // namespace ddp::core
