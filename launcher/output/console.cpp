#include "launcher/output/console.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include "base/file_thread.hpp"
#include "base/unique_fd.hpp"
#include "base/write_all.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kUnreadBytesMax = 16u << 20;
constexpr int kPipeBytes = 1 << 20;  // the usual limit; with 64 KiB a reader on a busy machine falls behind
constexpr std::size_t kThreadWriteBytes = 256 * 1024;  // handed to a destination's thread at once
constexpr std::chrono::seconds kThreadEndLimit{2};  // for what is left when ddprun ends without waiting for its output

// What the thread of a destination writes: it may outlive the destination, so it has a descriptor of its own.
struct FileWrite {
  std::shared_ptr<const base::UniqueFd> file;
  std::string bytes;
  int error = 0;  // afterwards: 0, or the errno for which not all could be written

  void run() { error = base::write_all_waiting(file->get(), bytes); }
};

bool same_file(int a, int b) {
  struct stat x {
  }, y{};
  return ::fstat(a, &x) == 0 && ::fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

}  // namespace

class Console::Destination : public std::enable_shared_from_this<Destination> {
 public:
  Destination(boost::asio::io_context& io, int fd, LineMerger::Options merging, std::function<void(int error)> failed)
      : io_(io), output_(kUnreadBytesMax, "ddprun"), merger_(merging), descriptor_(io), failed_(std::move(failed)) {
    struct stat info {};
    if (::fstat(fd, &info) != 0) return;  // closed by the user: everything is dropped
    is_file_ = S_ISREG(info.st_mode);
    if (S_ISSOCK(info.st_mode)) {
      kind_ = Kind::socket;
    } else if (!S_ISREG(info.st_mode)) {
      const auto path = "/proc/self/fd/" + std::to_string(fd);
      file_.reset(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
      if (file_) kind_ = Kind::own_description;
    }
    if (S_ISFIFO(info.st_mode)) ::fcntl(fd, F_SETPIPE_SZ, kPipeBytes);  // may be refused
    if (!file_) file_.reset(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    if (kind_ == Kind::may_block && file_) {
      thread_.emplace(io, base::FileThread::Options{.end_limit = kThreadEndLimit});
      shared_file_ = std::make_shared<const base::UniqueFd>(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    }
    terminal_ = ::isatty(fd) != 0;
    boost::system::error_code refused;  // epoll refuses what never blocks, such as /dev/null
    if (kind_ != Kind::may_block) descriptor_.assign(::fcntl(file_.get(), F_DUPFD_CLOEXEC, 3), refused);
  }

  bool is_terminal() const { return terminal_; }
  bool is_file() const { return is_file_; }
  int fd() const { return file_.get(); }
  LineMerger& merger() { return merger_; }

  // ddprun's own messages are never dropped.
  void push(std::string_view bytes, bool own_message = false) {
    if (!file_ || broken_) return;
    if (own_message)
      output_.push_always(bytes);
    else
      output_.push(bytes);
    if (!waiting_) write_some();
  }

  void when_drained(std::function<void()> done) {
    drained_ = std::move(done);
    if (!waiting_) tell_drained();
  }

  // What is left for a thread is still written, unless that takes too long.
  void close() {
    drained_ = nullptr;
    if (thread_) {
      const auto left = output_.front().substr(in_flight_);
      if (!broken_ && !left.empty())
        static_cast<void>(thread_->post([write = FileWrite{shared_file_, std::string(left)}]() mutable { write.run(); },
                                        [] {}, left.size()));
      thread_.reset();
    }
    boost::system::error_code ignored;
    descriptor_.close(ignored);
  }

 private:
  // may_block: a regular file, or a terminal or pipe that can't be opened anew, as another user's after su. Its
  // description is shared, so it stays blocking, and poll() is no help: another writer may take the room that it
  // reports.
  enum class Kind { own_description, socket, may_block };

  ssize_t write_without_blocking(std::string_view bytes) const {
    if (kind_ == Kind::socket) return ::send(file_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    return ::write(file_.get(), bytes.data(), bytes.size());
  }

  void write_some() {
    if (thread_) return write_on_thread();
    while (!output_.front().empty()) {
      const auto written = write_without_blocking(output_.front());
      if (written >= 0) {
        output_.pop(static_cast<std::size_t>(written));
      } else if (errno == EAGAIN) {
        return wait_for_room();
      } else if (errno != EINTR) {
        return give_up(errno);
      }
    }
    tell_drained();
  }

  void write_on_thread() {
    if (output_.front().empty()) return tell_drained();
    waiting_ = true;
    auto write =
        std::make_shared<FileWrite>(FileWrite{shared_file_, std::string(output_.front().substr(0, kThreadWriteBytes))});
    in_flight_ = write->bytes.size();
    // One write at a time, so none is refused: output_ bounds what waits.
    static_cast<void>(thread_->post([write] { write->run(); },
                                    [self = shared_from_this(), write] {
                                      self->waiting_ = false;
                                      self->output_.pop(std::exchange(self->in_flight_, 0));
                                      if (!self->thread_) return;  // closed
                                      if (write->error != 0) return self->give_up(write->error);
                                      self->write_on_thread();
                                    },
                                    in_flight_));
  }

  void wait_for_room() {
    waiting_ = true;
    descriptor_.async_wait(boost::asio::posix::stream_descriptor::wait_write,
                           [self = shared_from_this()](boost::system::error_code error) {
                             self->waiting_ = false;
                             if (!error) self->write_some();
                           });
  }

  void give_up(int error) {
    broken_ = true;
    output_.pop(output_.front().size());
    if (failed_) boost::asio::post(io_, [failed = std::exchange(failed_, nullptr), error] { failed(error); });
    tell_drained();
  }

  void tell_drained() {
    if (drained_) boost::asio::post(io_, std::exchange(drained_, nullptr));
  }

  boost::asio::io_context& io_;
  base::UniqueFd file_;
  Kind kind_ = Kind::may_block;
  base::BoundedOutput output_;
  LineMerger merger_;
  boost::asio::posix::stream_descriptor descriptor_;   // a duplicate of file_, to wait for room
  std::optional<base::FileThread> thread_;             // where a write may block, until close()
  std::shared_ptr<const base::UniqueFd> shared_file_;  // a duplicate of file_ for it
  std::size_t in_flight_ = 0;                          // bytes at the front of output_ that it is writing
  std::function<void(int error)> failed_;  // writing failed with this errno, so all is lost from here; called once
  std::function<void()> drained_;
  bool terminal_ = false, waiting_ = false, broken_ = false;
  bool is_file_ = false;
};

Console::Console(boost::asio::io_context& io, Options options) : options_(std::move(options)), hold_timer_(io) {
  const auto open = [&](int fd, std::function<void(int error)> failed) {
    return std::make_shared<Destination>(io, fd, LineMerger::Options{::isatty(fd) != 0, options_.prefix},
                                         std::move(failed));
  };
  stdout_ = open(STDOUT_FILENO, [this, reader_gone = options_.reader_gone](int error) {
    if (error == EPIPE) return reader_gone();
    print("ddprun: stdout can't be written any more, and what workers print there is lost: " +
          std::string(std::strerror(error)));
  });
  stderr_ = same_file(STDOUT_FILENO, STDERR_FILENO) ? stdout_ : open(STDERR_FILENO, nullptr);
  resized();
}

Console::~Console() {
  stdout_->close();
  stderr_->close();
}

void Console::feed(LineMerger::Source source, std::string_view bytes) {
  if (options_.prefix_of_many) {
    whole_lines_[source].feed(bytes, [&](std::string_view line) { hold(source, line); });
    return wait_for_equals();
  }
  auto& target = destination(source.stream);
  target->push(target->merger().feed(source, bytes));
}

void Console::end(const std::vector<int>& workers) {
  for (const int rank : workers)
    for (const int stream : {1, 2}) {
      const LineMerger::Source source{rank, stream};
      if (options_.prefix_of_many) {
        whole_lines_[source].end([&](std::string_view line) { hold(source, line); });
      } else {
        auto& target = destination(stream);
        target->push(target->merger().end(source));
      }
    }
  print(equal_lines_.take_all());
}

void Console::hold(LineMerger::Source source, std::string_view line) {
  const auto now = std::chrono::steady_clock::now();
  equal_lines_.add(source.rank, source.stream, line, now);
  print(equal_lines_.take_due(now));
}

void Console::print(const std::vector<EqualLines::Line>& lines) {
  for (const auto& line : lines)
    destination(line.stream)->push(options_.prefix_of_many(line.stream, line.ranks) + line.text + '\n');
}

void Console::wait_for_equals() {
  const auto deadline = equal_lines_.next_deadline();
  if (holding_ || !deadline) return;
  holding_ = true;
  hold_timer_.expires_at(*deadline);
  hold_timer_.async_wait([this](boost::system::error_code error) {
    if (error) return;
    holding_ = false;
    print(equal_lines_.take_due(std::chrono::steady_clock::now()));
    wait_for_equals();
  });
}

void Console::print(std::string_view message) {
  auto line = std::string(message);
  if (line.empty() || line.back() != '\n') line += '\n';
  stderr_->push(stderr_->merger().feed({kAgentSource, STDERR_FILENO}, line), true);
}

void Console::log(std::string_view line) {
  stderr_->push(stderr_->merger().feed({kAgentSource, STDERR_FILENO}, std::string(line) + '\n'));
}

bool Console::is_file(int stream) const { return (stream == 1 ? stdout_ : stderr_)->is_file(); }
bool Console::is_terminal(int stream) const { return (stream == 1 ? stdout_ : stderr_)->is_terminal(); }

std::optional<winsize> Console::terminal_size() const {
  for (const auto& target : {stdout_, stderr_}) {
    winsize size{};
    if (target->is_terminal() && ::ioctl(target->fd(), TIOCGWINSZ, &size) == 0) return size;
  }
  return {};
}

void Console::resized() {
  const auto size = terminal_size();
  for (const auto& target : {stdout_, stderr_})
    target->merger().set_size(size ? size->ws_col : 0, size ? size->ws_row : 0);
}

void Console::when_drained(std::function<void()> done) {
  stdout_->when_drained([this, done = std::move(done)] { stderr_->when_drained(done); });
}

}  // namespace ddp::launcher
