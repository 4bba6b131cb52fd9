#include "launcher/output/log_thread.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>

#include "base/event_fd.hpp"
#include "base/quiet_thread.hpp"
#include "base/throw_errno.hpp"
#include "launcher/output/log_disk.hpp"
#include "launcher/output/stream_ends.hpp"
#include "launcher/output/whole_lines.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kReadBytes = 64 * 1024;
constexpr std::size_t kHandedOverMax = 1 << 20;   // then the thread waits for the loop
constexpr std::size_t kShownPerTurn = 64 * 1024;  // then others on the loop get their turn
constexpr int kReadsInDrain = 64;                 // of one stream; somebody who goes on writing must not keep us here
constexpr std::chrono::seconds kStalledLimit{5};  // at the end, since the disk took something
constexpr std::chrono::seconds kStopLimit{30};    // at the end, in all

bool contains_one_of(std::string_view line, const std::vector<std::string>& wanted) {
  return std::any_of(wanted.begin(), wanted.end(),
                     [&](const std::string& text) { return line.find(text) != std::string_view::npos; });
}

struct Resize {
  winsize size;
};
struct Drain {
  std::uint64_t number;
  std::vector<int> kept;
};
struct Stop {};

}  // namespace

struct LogThread::Work {
  using Command = std::variant<std::vector<Stream>, Resize, Drain, Stop>;

  void send(Command command) {
    {
      const std::lock_guard lock(mutex);
      commands.push_back(std::move(command));
    }
    base::ring(wake);
  }

  base::UniqueFd wake = base::make_event();  // of the thread: there are commands
  base::UniqueFd news = base::make_event();  // of the loop: something is handed over

  std::mutex mutex;
  std::condition_variable changed;  // of anything below
  std::vector<Command> commands;    // in order; few, one per round and event
  Batch handed_over;
  std::vector<std::string> warnings;
  std::uint64_t drained = 0;
  std::uint64_t written = 0;  // pieces that the disk has taken
  bool stopping = false, ended = false, warned = false;
};

// The thread's own side.
class LogThread::Writer {
 public:
  explicit Writer(std::shared_ptr<Work> work)
      : work_(std::move(work)),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        disk_(std::make_unique<LogDisk>(
            LogDisk::Options{.lost = [work = work_](const LogFile& file, int error) { warn_of(*work, file, error); },
                             .wrote =
                                 [work = work_] {
                                   const std::lock_guard lock(work->mutex);
                                   ++work->written;
                                   if (work->stopping) work->changed.notify_all();
                                 }})) {
    if (!epoll_) base::throw_errno("epoll_create1");
    watch(work_->wake.get(), nullptr);
  }

  void run() {
    while (!stopped_) {
      std::array<epoll_event, 64> events;
      const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
      bool commanded = false;
      for (int i = 0; i < count; ++i) {
        auto* reading = static_cast<ReadStream*>(events[static_cast<std::size_t>(i)].data.ptr);
        if (reading == nullptr)
          commanded = true;
        else if (!read_once(*reading))
          unwatch(*reading);
      }
      if (commanded) obey();
    }
    for (const auto& reading : readings_) {
      disk_->end(reading.file);
      if (reading.duplicates) disk_->end(reading.duplicates);
    }
    readings_.clear();
    disk_.reset();
    const std::lock_guard lock(work_->mutex);
    work_->ended = true;
    work_->changed.notify_all();
  }

 private:
  struct ReadStream {
    Stream stream;
    LogDisk::File file;        // of the stream
    LogDisk::File duplicates;  // or null
    WholeLines lines;          // for the duplicates
    bool watched = true;
  };

  void watch(int fd, ReadStream* reading) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = reading;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  }

  void unwatch(ReadStream& reading) {
    if (std::exchange(reading.watched, false))
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, reading.stream.from.get(), nullptr);
  }

  void obey() {
    base::take_rings(work_->wake.get());
    std::vector<Work::Command> commands;
    {
      const std::lock_guard lock(work_->mutex);
      commands.swap(work_->commands);
    }
    for (auto& command : commands) std::visit([this](auto& what) { obey(what); }, command);
  }

  void obey(std::vector<Stream>& streams) {
    for (auto& stream : streams) {
      auto file = std::make_shared<LogFile>(std::move(stream.file));
      const auto& shared = stream.duplicates;
      LogDisk::File duplicates(shared, shared ? &shared->file : nullptr);
      auto& reading =
          readings_.emplace_back(ReadStream{std::move(stream), std::move(file), std::move(duplicates), {}, true});
      watch(reading.stream.from.get(), &reading);
    }
  }

  void obey(const Resize& command) {
    for (const auto& reading : readings_) {
      const auto size = narrowed(command.size, reading.stream.columns_taken);
      ::ioctl(reading.stream.from.get(), TIOCSWINSZ, &size);
    }
  }

  void obey(const Drain& command) {
    const auto is_kept = [&](const ReadStream& reading) {
      return std::find(command.kept.begin(), command.kept.end(), reading.stream.source.rank) != command.kept.end();
    };
    for (auto& reading : readings_) {
      if (is_kept(reading)) continue;
      for (int i = 0; i < kReadsInDrain && reading.watched && read_once(reading, true); ++i) continue;
      if (reading.stream.duplicates)
        reading.lines.end([&](std::string_view line) { duplicate_if_wanted(reading, line); });
      write_duplicates(reading);
      disk_->end(reading.file);
      if (reading.duplicates) disk_->end(reading.duplicates);
    }
    readings_.remove_if([&](const ReadStream& reading) { return !is_kept(reading); });
    disk_->then([work = work_, number = command.number] {
      {
        const std::lock_guard lock(work->mutex);
        work->drained = number;
      }
      tell(*work);
    });
  }

  void obey(const Stop&) { stopped_ = true; }

  // False at the end of the stream; and where there is nothing now, if `until_empty`.
  bool read_once(ReadStream& reading, bool until_empty = false) {
    const auto length = ::read(reading.stream.from.get(), buffer_.data(), buffer_.size());
    if (length < 0 && errno == EINTR) return true;
    if (length < 0 && errno == EAGAIN) return !until_empty;
    if (length <= 0) return false;  // a pty whose last user has gone answers EIO
    const std::string_view bytes(buffer_.data(), static_cast<std::size_t>(length));
    disk_->append(reading.file, bytes);
    if (reading.stream.duplicates) {
      reading.lines.feed(bytes, [&](std::string_view line) { duplicate_if_wanted(reading, line); });
      write_duplicates(reading);
    }
    if (reading.stream.shown) hand_over(reading.stream.source, bytes);
    return true;
  }

  void duplicate_if_wanted(const ReadStream& reading, std::string_view line) {
    if (!contains_one_of(line, reading.stream.duplicates->wanted)) return;
    ((duplicates_ += reading.stream.prefix.text()) += line) += '\n';
  }

  void write_duplicates(const ReadStream& reading) {
    if (duplicates_.empty()) return;
    disk_->append(reading.duplicates, duplicates_);
    duplicates_.clear();
  }

  void hand_over(LineMerger::Source source, std::string_view bytes) {
    std::unique_lock lock(work_->mutex);
    auto& batch = work_->handed_over;
    work_->changed.wait(lock, [&] { return batch.cost() < kHandedOverMax || work_->stopping; });
    if (work_->stopping) return;
    const bool is_news = batch.pieces.empty();
    batch.bytes += bytes;
    batch.pieces.push_back({source, bytes.size()});
    lock.unlock();
    if (is_news) tell(*work_);
  }

  // On this thread, or the disk's. `error` 0: the disk takes nothing.
  static void warn_of(Work& work, const LogFile& file, int error) {
    {
      const std::lock_guard lock(work.mutex);
      if (std::exchange(work.warned, true)) return;
      work.warnings.push_back("ddprun: " + file.path() +
                              " can't be written: " + (error == 0 ? "its disk does not answer" : std::strerror(error)) +
                              "; what workers print is missing in log files until it can");
    }
    tell(work);
  }

  static void tell(Work& work) {
    work.changed.notify_all();
    base::ring(work.news);
  }

  std::shared_ptr<Work> work_;
  base::UniqueFd epoll_;
  std::list<ReadStream> readings_;  // a list, because epoll knows them by their address
  std::array<char, kReadBytes> buffer_;
  std::string duplicates_;  // lines on their way to the file of the stream at hand
  bool stopped_ = false;
  std::unique_ptr<LogDisk> disk_;  // until the thread ends
};

LogThread::LogThread(boost::asio::io_context& io, Options options)
    : io_(io),
      options_(std::move(options)),
      work_(std::make_shared<Work>()),
      news_(io, ::fcntl(work_->news.get(), F_DUPFD_CLOEXEC, 3)) {}

void LogThread::start() {
  thread_ = base::start_quiet_thread([writer = std::make_shared<Writer>(work_)] { writer->run(); });
  wait_for_news();
}

void LogThread::add(std::vector<Stream> streams) { work_->send(std::move(streams)); }

void LogThread::resize(const winsize& size) { work_->send(Resize{size}); }

void LogThread::wait_for_news() {
  news_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                   [self = shared_from_this()](boost::system::error_code error) {
                     if (error) return;
                     base::take_rings(self->news_.native_handle());
                     self->take_some();
                   });
}

// Shows a share of what was handed over, and comes again for the rest.
void LogThread::take_some() {
  if (!news_.is_open()) return;
  if (shown_pieces_ == taken_.pieces.size()) {
    take_handed_over(std::unique_lock(work_->mutex));
  }
  if (!show(kShownPerTurn)) return boost::asio::post(io_, [self = shared_from_this()] { self->take_some(); });
  wait_for_news();
  tell_drained();
}

// Requires that all that was taken before is shown.
void LogThread::take_handed_over(std::unique_lock<std::mutex> lock) {
  std::vector<std::string> warnings;
  taken_.clear();
  std::swap(taken_, work_->handed_over);
  warnings.swap(work_->warnings);
  drains_seen_ = work_->drained;
  work_->changed.notify_all();
  lock.unlock();
  shown_pieces_ = shown_bytes_ = 0;
  for (const auto& warning : warnings) options_.warn(warning);
}

// Whether nothing of it is left.
bool LogThread::show(std::size_t bytes_max) {
  for (const auto end = shown_bytes_ + bytes_max; shown_pieces_ < taken_.pieces.size() && shown_bytes_ < end;) {
    const auto& piece = taken_.pieces[shown_pieces_++];
    const auto bytes = std::string_view(taken_.bytes).substr(shown_bytes_, piece.bytes);
    shown_bytes_ += piece.bytes;
    options_.read(piece.source, bytes);
  }
  return shown_pieces_ == taken_.pieces.size();
}

// Requires that all that was taken is shown.
void LogThread::tell_drained() {
  while (drains_ - on_drained_.size() < drains_seen_) {
    const auto drained = std::move(on_drained_.front());
    on_drained_.pop_front();
    drained();
  }
}

void LogThread::drain(std::vector<int> kept, std::function<void()> drained) {
  on_drained_.push_back(std::move(drained));
  work_->send(Drain{++drains_, std::move(kept)});
}

void LogThread::stop() {
  boost::system::error_code ignored;
  news_.close(ignored);
  if (!thread_.joinable()) return;
  work_->send(Stop{});
  std::unique_lock lock(work_->mutex);
  work_->stopping = true;
  work_->changed.notify_all();
  const auto limit = std::chrono::steady_clock::now() + kStopLimit;
  bool ended = false, goes_on = true;
  while (!ended && goes_on && std::chrono::steady_clock::now() < limit) {
    const auto before = work_->written;
    goes_on = work_->changed.wait_for(lock, kStalledLimit, [&] { return work_->ended || work_->written != before; });
    ended = work_->ended;
  }
  lock.unlock();
  ended ? thread_.join() : thread_.detach();  // a disk hangs, and the process would with it
}

}  // namespace ddp::launcher
