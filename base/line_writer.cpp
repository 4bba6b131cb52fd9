#include "base/line_writer.hpp"

#include <limits.h>

#include <condition_variable>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/bounded_output.hpp"
#include "base/printable.hpp"
#include "base/quiet_thread.hpp"
#include "base/write_all.hpp"

namespace ddp::base {
namespace {

constexpr std::chrono::seconds kEndLimit{2};

// Whole lines, as many as a pipe takes at once: so the lines of several writers do not mix.
std::string_view first_lines(std::string_view text) {
  if (text.size() <= PIPE_BUF) return text;
  const auto newline = text.rfind('\n', PIPE_BUF - 1);
  return text.substr(0, newline == std::string_view::npos ? PIPE_BUF : newline + 1);
}

}  // namespace

struct LineWriter::Queue {
  Queue(int fd, const std::string& program) : descriptor(fd), lines(kQueuedBytesMax, program) {}

  const int descriptor;
  std::mutex mutex;
  std::condition_variable changed;  // of anything below
  BoundedOutput lines;              // the thread is writing the first of them
  bool is_ending = false, has_ended = false;
  std::thread thread;         // from the first line on
  std::string being_written;  // the thread's; here so that no copy is lost in a forked child
};

LineWriter::LineWriter(int descriptor, const std::string& program, std::string prefix)
    : prefix_(std::move(prefix)), queue_(std::make_shared<Queue>(descriptor, program)) {}

LineWriter::~LineWriter() {
  std::unique_lock lock(queue_->mutex);
  if (!queue_->thread.joinable()) return;
  queue_->is_ending = true;
  queue_->changed.notify_all();
  const bool has_ended = queue_->changed.wait_for(lock, kEndLimit, [this] { return queue_->has_ended; });
  auto thread = std::move(queue_->thread);
  lock.unlock();
  has_ended ? thread.join() : thread.detach();
}

void LineWriter::operator()(const std::string& line) {
  auto text = prefix_ + printable(line);
  if (text.size() >= PIPE_BUF) text.resize(PIPE_BUF - 1);
  text += '\n';
  const std::lock_guard lock(queue_->mutex);
  queue_->lines.push(text);
  queue_->changed.notify_all();
  if (queue_->thread.joinable()) return;
  try {
    queue_->thread = start_quiet_thread([queue = queue_] { write_all(*queue); });
  } catch (const std::system_error&) {  // the next line tries again
  }
}

bool LineWriter::flush(std::chrono::milliseconds limit) {
  std::unique_lock lock(queue_->mutex);
  return queue_->changed.wait_for(lock, limit, [this] { return queue_->lines.empty(); });
}

void LineWriter::write_all(Queue& queue) {
  std::unique_lock lock(queue.mutex);
  while (true) {
    queue.changed.wait(lock, [&] { return queue.is_ending || !queue.lines.empty(); });
    if (queue.lines.empty()) break;
    queue.being_written = first_lines(queue.lines.front());
    lock.unlock();
    static_cast<void>(write_all_waiting(queue.descriptor, queue.being_written));  // nobody can be told of an error
    lock.lock();
    queue.lines.pop(queue.being_written.size());
    queue.changed.notify_all();
  }
  queue.has_ended = true;
  queue.changed.notify_all();
}

}  // namespace ddp::base
