#include "launcher/output/console_reader.hpp"

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace ddp::launcher {
namespace {

constexpr std::size_t kReadBytes = 64 * 1024;
constexpr int kReadsPerWakeUp = 4;  // then others get their turn

}  // namespace

ConsoleReader::ConsoleReader(boost::asio::io_context& io, base::UniqueFd from, Read read)
    : from_(io, from.release()), read_(std::move(read)) {}

void ConsoleReader::start() {
  from_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                   [self = shared_from_this()](boost::system::error_code error) {
                     if (!error && self->read_available(kReadsPerWakeUp)) self->start();
                   });
}

// False at the end of file.
bool ConsoleReader::read_available(int reads_max) {
  static char buffer[kReadBytes];  // one thread; bytes are passed on at once
  for (int i = 0; i < reads_max && from_.is_open(); ++i) {
    const auto length = ::read(from_.native_handle(), buffer, sizeof buffer);
    if (length > 0) {
      read_({buffer, static_cast<std::size_t>(length)});
    } else if (length < 0 && errno == EINTR) {
      continue;
    } else {
      return length < 0 && errno == EAGAIN;  // a pty whose last user has gone answers EIO
    }
  }
  return true;
}

void ConsoleReader::resize(const winsize& size) {
  if (from_.is_open()) ::ioctl(from_.native_handle(), TIOCSWINSZ, &size);
}

void ConsoleReader::drain() {
  // A pipe holds at most 1 MiB (its usual limit); somebody else who goes on writing must not keep us here.
  read_available(64);
  boost::system::error_code ignored;
  from_.close(ignored);
}

}  // namespace ddp::launcher
