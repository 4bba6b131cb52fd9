#include "launcher/output/worker_streams.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <system_error>

namespace ddp::launcher {
namespace {

constexpr std::size_t kTailLines = 12;
constexpr std::size_t kTailLineBytesMax = 400;
constexpr std::size_t kReadBytes = 64 * 1024;
constexpr int kReadsPerWakeUp = 4;  // then others get their turn

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

struct Pair {
  io::UniqueFd agent, worker;
};

Pair open_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail("pipe for a worker's output");
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {io::UniqueFd(ends[0]), io::UniqueFd(ends[1])};
}

// The worker's bytes pass unchanged: the user's own terminal does what is to be done at a newline.
Pair open_pty(const std::optional<winsize>& size) {
  Pair pair;
  pair.agent.reset(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
  if (!pair.agent || ::grantpt(pair.agent.get()) != 0 || ::unlockpt(pair.agent.get()) != 0)
    fail("pseudo-terminal for a worker's output");
  pair.worker.reset(::ioctl(pair.agent.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!pair.worker) fail("pseudo-terminal for a worker's output");
  termios settings{};
  ::tcgetattr(pair.worker.get(), &settings);
  settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  settings.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  ::tcsetattr(pair.worker.get(), TCSANOW, &settings);
  if (size) ::ioctl(pair.agent.get(), TIOCSWINSZ, &*size);
  return pair;
}

}  // namespace

WorkerStreams::WorkerStreams(boost::asio::io_context& io, Options options)
    : options_(std::move(options)), agent_{boost::asio::posix::stream_descriptor(io),
                                           boost::asio::posix::stream_descriptor(io)} {
  // The terminal itself, not a pty, so that line editing and hidden input work as the user knows them.
  worker_[0].reset(options_.terminal[0] ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                                        : ::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!worker_[0]) fail("stdin of a worker");
  for (int stream : {1, 2}) {
    auto pair = options_.terminal[stream] ? open_pty(options_.size) : open_pipe();
    worker_[static_cast<std::size_t>(stream)] = std::move(pair.worker);
    agent_[static_cast<std::size_t>(stream - 1)].assign(pair.agent.release());
  }
  tail_.emplace_back();
}

void WorkerStreams::close_worker_side() {
  for (auto& fd : worker_) fd.reset();
}

void WorkerStreams::start_reading() {
  wait(1);
  wait(2);
}

void WorkerStreams::wait(int stream) {
  agent_[static_cast<std::size_t>(stream - 1)].async_wait(
      boost::asio::posix::stream_descriptor::wait_read,
      [self = shared_from_this(), stream](boost::system::error_code error) {
        if (!error && self->read_available(stream, kReadsPerWakeUp)) self->wait(stream);
      });
}

// False at the end of file.
bool WorkerStreams::read_available(int stream, int reads_max) {
  static char buffer[kReadBytes];  // one thread; bytes are passed on at once
  auto& descriptor = agent_[static_cast<std::size_t>(stream - 1)];
  for (int i = 0; i < reads_max && descriptor.is_open(); ++i) {
    const auto length = ::read(descriptor.native_handle(), buffer, sizeof buffer);
    if (length > 0) {
      const std::string_view bytes(buffer, static_cast<std::size_t>(length));
      if (stream == 2) remember(bytes);
      options_.read(stream, bytes);
    } else if (length < 0 && errno == EINTR) {
      continue;
    } else {
      return length < 0 && errno == EAGAIN;  // a pty whose last user has gone answers EIO
    }
  }
  return true;
}

void WorkerStreams::resize(const winsize& size) {
  for (int stream : {1, 2}) {
    auto& descriptor = agent_[static_cast<std::size_t>(stream - 1)];
    if (options_.terminal[stream] && descriptor.is_open()) ::ioctl(descriptor.native_handle(), TIOCSWINSZ, &size);
  }
}

void WorkerStreams::drain() {
  for (int stream : {1, 2}) {
    // A pipe holds at most 1 MiB (its usual limit); somebody else who goes on writing must not keep us here.
    read_available(stream, 64);
    boost::system::error_code ignored;
    agent_[static_cast<std::size_t>(stream - 1)].close(ignored);
  }
}

void WorkerStreams::remember(std::string_view bytes) {
  constexpr std::size_t kEnough = kTailLines * kTailLineBytesMax;
  if (bytes.size() > kEnough) bytes.remove_prefix(bytes.size() - kEnough);
  for (const char c : bytes) {
    if (c == '\n' || c == '\r') {
      if (!tail_.back().empty()) tail_.emplace_back();
      if (tail_.size() > kTailLines + 1) tail_.pop_front();
    } else if (tail_.back().size() < kTailLineBytesMax) {
      tail_.back() += c;
    }
  }
}

std::vector<std::string> WorkerStreams::stderr_tail() const {
  std::vector<std::string> lines(tail_.begin(), tail_.end());
  if (lines.back().empty()) lines.pop_back();
  return lines;
}

}  // namespace ddp::launcher
