// A child process whose stdin, stdout and stderr are pipes that an event loop serves. It may have one more pipe for a
// report.
//
// Threads: the event loop's only.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.hpp"

namespace ddp::launcher {

// Writes to a pipe or socket without blocking. The caller bounds what waits.
class PipeWriter : public std::enable_shared_from_this<PipeWriter> {
 public:
  // `changed` is called when all is written, and when nobody reads any more: is_broken().
  PipeWriter(boost::asio::io_context& io, base::UniqueFd to, std::function<void()> changed);

  void write(std::string_view bytes);
  void close_when_written();  // and takes nothing more
  void close();
  std::size_t waiting_bytes() const { return queue_.size(); }
  bool is_broken() const { return broken_; }

 private:
  void write_some();

  boost::asio::posix::stream_descriptor to_;
  std::function<void()> changed_;
  std::string queue_;
  bool waits_ = false, closing_ = false, broken_ = false;
};

// Reads a pipe or socket without blocking.
class PipeReader : public std::enable_shared_from_this<PipeReader> {
 public:
  // `read` gets what came, and nothing at the end.
  PipeReader(boost::asio::io_context& io, base::UniqueFd from, std::function<void(std::string_view bytes)> read);

  void start();
  void pause(bool paused);
  void drain();  // reads what is there now, and closes: another process may hold the other side open
  void close();

 private:
  bool read_some(int reads_max);

  boost::asio::posix::stream_descriptor from_;
  std::function<void(std::string_view bytes)> read_;
  bool waits_ = false, paused_ = false;
};

class PipedChild : public std::enable_shared_from_this<PipedChild> {
 public:
  struct Options {
    std::vector<std::string> command;      // the program is looked for along PATH
    std::vector<std::string> environment;  // "NAME=value", all of it
    std::string directory;                 // to run in; empty: this process's
    bool own_session = false;              // ctrl-c at this process's terminal does not reach it
    int parent_death_signal = 0;           // that it gets when this process ends
    std::string report_variable{};         // names the descriptor of its pipe for a report; empty: it has none
  };
  struct Handlers {
    std::function<void(std::string_view bytes)> out, err;
    std::function<void(int wait_status)> ended;            // comes last, after all output
    std::function<void()> written{};                       // all input that was given
    std::function<void(std::string_view bytes)> report{};  // is not paused
  };

  // Throws std::system_error, which says what failed. `handlers` may own the child until `ended` was called.
  static std::shared_ptr<PipedChild> start(boost::asio::io_context& io, const Options& options, Handlers handlers);
  PipedChild(boost::asio::io_context& io, const Options& options, Handlers handlers);
  ~PipedChild();  // kills it
  PipedChild(const PipedChild&) = delete;

  PipeWriter& input() { return *input_; }
  void pause_output(bool paused);
  void kill(int signal_number) const;
  pid_t pid() const { return pid_; }

 private:
  void spawn(const Options& options, base::UniqueFd (&ends)[3], int report_end);
  void wait_for_end();

  boost::asio::io_context& io_;
  Handlers handlers_;
  pid_t pid_ = -1;  // -1 once it was waited for
  boost::asio::posix::stream_descriptor end_;
  std::shared_ptr<PipeWriter> input_;
  std::shared_ptr<PipeReader> out_, err_, report_;  // report_ may be null
};

}  // namespace ddp::launcher
