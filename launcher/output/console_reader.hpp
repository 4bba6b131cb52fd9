// Reads one stream of one worker on the event loop: what goes to the console only.
//
// Threads: the event loop's only.
#pragma once

#include <sys/ioctl.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <string_view>

#include "base/unique_fd.hpp"

namespace ddp::launcher {

class ConsoleReader : public std::enable_shared_from_this<ConsoleReader> {
 public:
  using Read = std::function<void(std::string_view bytes)>;

  // `from` does not block.
  ConsoleReader(boost::asio::io_context& io, base::UniqueFd from, Read read);

  void start();

  // Of a pseudo-terminal; nothing happens to a pipe.
  void resize(const winsize& size);

  // Reads what is there now and closes: at the end of the process tree, not at the end of file, because a process that
  // was started elsewhere may hold the other side open.
  void drain();

 private:
  bool read_available(int reads_max);

  boost::asio::posix::stream_descriptor from_;
  Read read_;
};

}  // namespace ddp::launcher
