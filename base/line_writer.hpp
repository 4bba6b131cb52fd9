// Writes lines to a descriptor that belongs to others too, such as stderr, without ever waiting for its reader or its
// disk: what does not fit is dropped, counted, and told of with the next line that fits. The descriptor's mode stays as
// it is. What a line holds of others is made printable, so it stays one line.
//
// A regular file is written by a thread, because its disk may stop answering; the destructor gives it 2 s for what is
// left.
//
// Threads: the event loop's only.
#pragma once

#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/file_thread.hpp"
#include "base/printable.hpp"

namespace ddp::base {

class LineWriter {
 public:
  static constexpr std::size_t kQueuedBytesMax = 1 << 20;  // on their way to a file

  // Throws std::system_error where threads run out.
  LineWriter(boost::asio::io_context& io, int descriptor, std::string prefix)
      : descriptor_(descriptor), prefix_(std::move(prefix)) {
    struct stat info {};
    if (::fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode)) file_.emplace(io, std::chrono::seconds(2));
  }

  void operator()(const std::string& line) {
    if (!has_room()) {
      ++dropped_;
      return;
    }
    auto text = prefix_ + printable(line);
    if (dropped_ != 0)
      text = prefix_ + std::to_string(std::exchange(dropped_, 0)) + " lines before this one were dropped\n" + text;
    if (text.size() >= PIPE_BUF) text.resize(PIPE_BUF - 1);
    text += '\n';
    file_ ? post(std::move(text)) : write(descriptor_, text);
  }

 private:
  bool has_room() const {
    if (file_) return *queued_bytes_ < kQueuedBytesMax;
    // Where poll says that a pipe or terminal takes bytes, it takes PIPE_BUF of them at once.
    pollfd waiting{descriptor_, POLLOUT, 0};
    return ::poll(&waiting, 1, 0) == 1 && (waiting.revents & POLLOUT) != 0;
  }

  void post(std::string text) {
    const auto size = text.size();
    *queued_bytes_ += size;
    file_->post([descriptor = descriptor_, text = std::move(text)] { write(descriptor, text); },
                [queued = queued_bytes_, size] { *queued -= size; });
  }

  static void write(int descriptor, const std::string& text) {
    static_cast<void>(!::write(descriptor, text.data(), text.size()));  // nowhere to say that it failed
  }

  int descriptor_;
  std::string prefix_;
  std::size_t dropped_ = 0;
  std::shared_ptr<std::size_t> queued_bytes_ = std::make_shared<std::size_t>(0);  // the loop's
  std::optional<FileThread> file_;                                                // of a regular file
};

}  // namespace ddp::base
