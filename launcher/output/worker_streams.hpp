// The stdin, stdout and stderr of one worker, from both sides: what the worker gets, and what the agent reads.
//
// Threads: the event loop's only.
#pragma once

#include <sys/ioctl.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/io/unique_fd.hpp"

namespace ddp::launcher {

class WorkerStreams : public std::enable_shared_from_this<WorkerStreams> {
 public:
  struct Options {
    bool terminal[3] = {false, false, false};  // per stream: a pty, else a pipe; [0]: the user's own terminal as stdin
    std::optional<winsize> size;               // of the ptys
    std::function<void(int stream, std::string_view bytes)> read;
  };

  // Throws std::system_error where descriptors run out.
  WorkerStreams(boost::asio::io_context& io, Options options);

  // For the worker: stdin, stdout, stderr. To be let go of once they are handed over.
  std::array<int, 3> worker_side() const { return {worker_[0].get(), worker_[1].get(), worker_[2].get()}; }
  void close_worker_side();

  void start_reading();

  void resize(const winsize& size);

  // Reads what is there now and closes: at the end of the process tree, not at the end of file, because a process that
  // was started elsewhere may hold the other side open.
  void drain();

  // The last lines of stderr, oldest first.
  std::vector<std::string> stderr_tail() const;

 private:
  void wait(int stream);
  bool read_available(int stream, int reads_max);
  void remember(std::string_view bytes);

  Options options_;
  std::array<io::UniqueFd, 3> worker_;
  std::array<boost::asio::posix::stream_descriptor, 2> agent_;  // [0] stdout, [1] stderr
  std::deque<std::string> tail_;  // the last one is unfinished
};

}  // namespace ddp::launcher
