// What a daemon does with its own process: it runs until a signal ends it, and may hold as many connections as it can.
//
// Threads: the program's main thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

namespace ddp::rendezvous {

class OwnProcess {
 public:
  // Blocks the signals that end it and raises the limit of descriptors.
  explicit OwnProcess(boost::asio::io_context& io);

  // Runs the loop until SIGINT, SIGTERM, or a SIGHUP that was not ignored at the start; returns its number.
  int run_until_signal();

 private:
  boost::asio::io_context& io_;
  boost::asio::posix::stream_descriptor signals_;
};

}  // namespace ddp::rendezvous
