// Writes the streams that go to a file and to the console (--tee): a thread of its own reads them, passes them to
// another that adds them to their files (log_disk.hpp, with the drop rule), and hands the event loop what the console
// is to show. A disk stops the loop never. It stops workers only while it takes something, or for 2 s: their pipes fill
// then.
//
// What is handed over is bounded: the thread waits for the loop, which takes it in small shares between its other work.
// The console drops what it can't show. A file loses what the disk refuses, or does not take for more than 2 s; that is
// told once, and said in the file.
//
// Threads: all members are the event loop's; Work is what the two threads share.
#pragma once

#include <sys/ioctl.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/unique_fd.hpp"
#include "launcher/output/line_merger.hpp"
#include "launcher/output/line_prefix.hpp"
#include "launcher/output/log_file.hpp"

namespace ddp::launcher {

// A file that gets the lines which contain one of these texts, from many streams.
struct DuplicateFile {
  LogFile file;
  std::vector<std::string> wanted;
};

class LogThread : public std::enable_shared_from_this<LogThread> {
 public:
  struct Stream {
    LineMerger::Source source;
    base::UniqueFd from;  // does not block
    LogFile file;
    bool shown = true;                          // on the console too
    std::size_t columns_taken = 0;              // there, by its prefix
    std::shared_ptr<DuplicateFile> duplicates;  // or null; to be shared by streams of this thread only
    LinePrefix prefix;                          // of lines in that file
  };

  struct Options {
    std::function<void(LineMerger::Source source, std::string_view bytes)> read;  // what is to be shown
    std::function<void(const std::string& message)> warn;
  };

  // Throws std::system_error where descriptors or threads run out.
  LogThread(boost::asio::io_context& io, Options options);

  void start();
  void add(std::vector<Stream> streams);
  void resize(const winsize& size);  // of pseudo-terminals

  // Has everything that is there now read, written and shown, and all streams closed but those of the workers that are
  // `kept`. Then calls `drained`, from the loop; a disk that hangs may delay that without end.
  void drain(std::vector<int> kept, std::function<void()> drained);

  // Nothing is shown any more. Waits up to 5 s for what is still to be written.
  void stop();

 private:
  struct Work;
  class Writer;

  void wait_for_news();
  void take_some();
  void take_handed_over(std::unique_lock<std::mutex> lock);
  bool show(std::size_t bytes_max);
  void tell_drained();

  struct Piece {
    LineMerger::Source source;
    std::size_t bytes;
  };
  struct Batch {
    std::string bytes;
    std::vector<Piece> pieces;
    std::size_t cost() const { return bytes.size() + pieces.size() * sizeof(Piece); }
    void clear() { bytes.clear(), pieces.clear(); }
  };

  boost::asio::io_context& io_;
  Options options_;
  std::shared_ptr<Work> work_;
  boost::asio::posix::stream_descriptor news_;
  std::thread thread_;
  Batch taken_;  // of which this much has been shown:
  std::size_t shown_pieces_ = 0, shown_bytes_ = 0;
  std::uint64_t drains_ = 0, drains_seen_ = 0;    // asked for, and done when taken_ was taken
  std::deque<std::function<void()>> on_drained_;  // of those that are not told yet, in order
};

}  // namespace ddp::launcher
