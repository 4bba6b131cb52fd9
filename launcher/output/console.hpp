// ddprun's own stdout and stderr: everything that workers and ddprun print goes through here.
//
// The two are one destination where they are the same terminal, pipe or file, so that order is kept. Writing never
// blocks the event loop, and never makes the user's descriptors non-blocking, which the user's shell shares: a terminal
// or pipe is opened anew for a description of our own, a socket is written with MSG_DONTWAIT. A thread of its own
// writes a regular file, because its disk may stop answering, and a terminal or pipe that this user can't open anew.
//
// Threads: the event loop's only.
#pragma once

#include <sys/ioctl.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bounded_output.hpp"
#include "launcher/output/equal_lines.hpp"
#include "launcher/output/line_merger.hpp"
#include "launcher/output/whole_lines.hpp"

namespace ddp::launcher {

class Console {
 public:
  struct Options {
    LineMerger::Prefix prefix;  // or null
    // Given, equal lines of many workers become one, with this before it; only whole lines are shown then.
    std::function<std::string(int stream, const std::vector<int>& ranks)> prefix_of_many;
    std::function<void()> reader_gone;  // stdout is a pipe that nobody reads any more; called once
  };

  Console(boost::asio::io_context& io, Options options);
  ~Console();

  // What a worker wrote; its stream 1 (stdout) goes to stdout, 2 to stderr.
  void feed(LineMerger::Source source, std::string_view bytes);
  // All streams of these workers have ended: shows what was kept back.
  void end(const std::vector<int>& workers);

  // One message of ddprun's own on stderr; a newline is added where it has none.
  void print(std::string_view message);
  void log(std::string_view line);  // dropped if the queue is full

  // How many workers print, for equal lines.
  void set_workers(int count) { equal_lines_.set_workers(count); }

  // Whether workers get a terminal for this stream, and its size then.
  bool is_terminal(int stream) const;
  bool is_file(int stream) const;  // that stays when the job is over
  std::optional<winsize> terminal_size() const;

  // Takes the terminal's new size over.
  void resized();

  // Calls `done` once everything is written, which may be never if nobody reads.
  void when_drained(std::function<void()> done);

 private:
  class Destination;
  std::shared_ptr<Destination>& destination(int stream) { return stream == 1 ? stdout_ : stderr_; }

  void hold(LineMerger::Source source, std::string_view line);
  void print(const std::vector<EqualLines::Line>& lines);
  void wait_for_equals();

  Options options_;
  std::shared_ptr<Destination> stdout_, stderr_;  // the same object where both lead to one place
  std::map<LineMerger::Source, WholeLines> whole_lines_;
  EqualLines equal_lines_;
  boost::asio::steady_timer hold_timer_;
  bool holding_ = false;  // the timer runs
};

}  // namespace ddp::launcher
