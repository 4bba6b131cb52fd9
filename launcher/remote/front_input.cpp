#include "launcher/remote/front_input.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <utility>

namespace ddp::launcher {
namespace {

constexpr std::size_t kInputBytes = 16 * 1024;

}  // namespace

FrontInput::FrontInput(boost::asio::io_context& io, std::function<void(std::string_view bytes)> read)
    : stdin_(io, ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)),
      read_(std::move(read)),
      is_terminal_(::isatty(STDIN_FILENO) != 0) {}

void FrontInput::want() {
  if (waits_ || !stdin_.is_open()) return;
  waits_ = true;
  stdin_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](boost::system::error_code error) {
    waits_ = false;
    // A file never blocks, and epoll takes none.
    if (!error || error == boost::asio::error::operation_not_supported) read_once();
  });
}

void FrontInput::read_once() {
  in_background_ = is_terminal_ && ::tcgetpgrp(STDIN_FILENO) != ::getpgrp();
  if (in_background_ || !stdin_.is_open()) return;
  std::array<char, kInputBytes> bytes;
  const auto count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return want();
  if (count <= 0) close();
  read_({bytes.data(), static_cast<std::size_t>(count < 0 ? 0 : count)});
}

void FrontInput::continued() {
  if (std::exchange(in_background_, false)) want();
}

void FrontInput::close() {
  boost::system::error_code ignored;
  stdin_.close(ignored);
}

}  // namespace ddp::launcher
