#include "worker_runtime/files/process_log.hpp"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "base/process_wide.hpp"

namespace ddp::process_log {

namespace {

// If poll reports room in a pipe or terminal, it takes PIPE_BUF bytes at once.
void write_if_there_is_room(std::string text) {
  pollfd waiting{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&waiting, 1, 0) != 1 || waiting.revents != POLLOUT) return;  // POLLERR: the reader is gone
  if (text.size() >= PIPE_BUF) text.resize(PIPE_BUF - 1);
  text += '\n';
  static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size()));  // an error cannot be reported anywhere
}

base::LogLevel wanted_level() {
  const char* const word = std::getenv("DDP_LOG_LEVEL");
  if (word == nullptr || *word == '\0') return base::LogLevel::off;
  if (const auto level = base::log_level_of(word)) return *level;
  write_if_there_is_room("libddp: DDP_LOG_LEVEL takes " + std::string(base::kLogLevelWords) + ", not '" + word + "'");
  return base::LogLevel::off;
}

constexpr std::size_t kTakenBytesMax = 256 * 1024;

struct ProcessLog {
  std::atomic<int> rank{-1};
  base::EventLog log{wanted_level(), [](base::LogLevel, const std::string& line) { write_if_there_is_room(line); }};
  std::mutex mutex;
  std::string taken;  // guarded by mutex: lines of earlier kept() calls
};

}  // namespace

void set_rank(int rank) noexcept {
  try {
    base::process_wide<ProcessLog>().rank = rank;
  } catch (...) {  // without a log
  }
}

void log(const base::LogEvent& event) noexcept {
  try {
    auto& own = base::process_wide<ProcessLog>();
    base::LogFields where;
    if (const int rank = own.rank; rank >= 0) where.add("rank", rank);
    where.add("pid", ::getpid());
    own.log(event, where);
  } catch (...) {  // logging must not fail the caller
  }
}

std::string kept() noexcept {
  try {
    auto& own = base::process_wide<ProcessLog>();
    const std::lock_guard lock(own.mutex);
    own.taken += own.log.take_kept();
    if (own.taken.size() > kTakenBytesMax)
      own.taken.erase(0, own.taken.find('\n', own.taken.size() - kTakenBytesMax) + 1);
    return own.taken;
  } catch (...) {
    return {};
  }
}

}  // namespace ddp::process_log
