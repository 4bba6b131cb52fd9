// ddprun's own stdout and stderr: everything that workers and ddprun print goes through here.
//
// The two are one destination where they are the same terminal, pipe or file, so that order is kept. Writing never blocks
// the event loop, and never makes the user's descriptors non-blocking, which the user's shell shares: a terminal or pipe
// is opened anew for a description of our own, a regular file is written directly, a socket with MSG_DONTWAIT.
//
// Threads: the event loop's only.
#pragma once

#include <sys/ioctl.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/output/bounded_output.hpp"
#include "launcher/output/line_merger.hpp"

namespace ddp::launcher {

class Console {
 public:
  struct Options {
    bool prefix = true;
    std::function<void()> reader_gone;  // stdout is a pipe that nobody reads any more; called once
  };

  Console(boost::asio::io_context& io, Options options);
  ~Console();

  // What a worker wrote; its stream 1 (stdout) goes to stdout, 2 to stderr.
  void feed(LineMerger::Source source, std::string_view bytes);
  void end(LineMerger::Source source);

  // One message of ddprun's own on stderr; a newline is added where it has none.
  void say(std::string_view message);

  // Whether workers get a terminal for this stream, and its size then.
  bool is_terminal(int stream) const;
  std::optional<winsize> terminal_size() const;

  // Takes the terminal's new size over.
  void resized();

  // Calls `done` once everything is written, which may be never if nobody reads.
  void when_drained(std::function<void()> done);

 private:
  class Destination;
  std::shared_ptr<Destination>& destination(int stream) { return stream == 1 ? stdout_ : stderr_; }

  std::shared_ptr<Destination> stdout_, stderr_;  // the same object where both lead to one place
};

}  // namespace ddp::launcher
