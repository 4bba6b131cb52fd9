// Bytes to a port and what it answers, as this user or as another one of this host.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <string>

#include "base/unique_fd.hpp"
#include "tests/unit/rendezvous/loopback.hpp"

namespace ddp::test {

// All that the port answers until it closes the connection.
inline std::string answer_to(std::uint16_t port, const std::string& request) {
  auto socket = store::RawSocket::connected(port);
  socket.send(request);
  return socket.receive(1u << 20);
}

constexpr uid_t kOtherUser = 54'321;  // that no machine has

// What `ask` returns in a process of another user. Requires root.
inline std::string as_other_user(const std::function<std::string()>& ask) {
  int ends[2];
  store::require(::pipe2(ends, O_CLOEXEC) == 0, "pipe2");
  const base::UniqueFd from(ends[0]);
  base::UniqueFd to(ends[1]);
  const pid_t child = ::fork();
  store::require(child >= 0, "fork");
  if (child == 0) {
    std::string said = "it can't become another user";
    if (::setgid(kOtherUser) == 0 && ::setuid(kOtherUser) == 0) try {
        said = ask();
      } catch (const std::exception& error) {
        said = error.what();
      }
    static_cast<void>(!::write(to.get(), said.data(), said.size()));  // shorter than a pipe
    ::_exit(0);
  }
  to.reset();
  std::string said;
  char bytes[4096];
  for (ssize_t count = 0; (count = ::read(from.get(), bytes, sizeof bytes)) > 0;)
    said.append(bytes, static_cast<std::size_t>(count));
  ::waitpid(child, nullptr, 0);
  return said;
}

}  // namespace ddp::test
