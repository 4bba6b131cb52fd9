#include "launcher/output/stream_ends.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>

#include "base/throw_errno.hpp"

namespace ddp::launcher {
namespace {}  // namespace

StreamEnds open_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) base::throw_errno("pipe for a worker's output");
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {base::UniqueFd(ends[0]), base::UniqueFd(ends[1])};
}

// The worker's bytes pass unchanged: the user's own terminal does what is to be done at a newline.
StreamEnds open_terminal(const std::optional<winsize>& size) {
  StreamEnds ends;
  ends.agent.reset(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
  if (!ends.agent || ::grantpt(ends.agent.get()) != 0 || ::unlockpt(ends.agent.get()) != 0)
    base::throw_errno("pseudo-terminal for a worker's output");
  ends.worker.reset(::ioctl(ends.agent.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!ends.worker) base::throw_errno("pseudo-terminal for a worker's output");
  termios settings{};
  ::tcgetattr(ends.worker.get(), &settings);
  settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  settings.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  ::tcsetattr(ends.worker.get(), TCSANOW, &settings);
  if (size) ::ioctl(ends.agent.get(), TIOCSWINSZ, &*size);
  return ends;
}

winsize narrowed(winsize size, std::size_t columns) {
  if (columns < size.ws_col) size.ws_col = static_cast<unsigned short>(size.ws_col - columns);
  return size;
}

}  // namespace ddp::launcher
