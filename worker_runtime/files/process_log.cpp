#include "worker_runtime/files/process_log.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>

#include "base/line_writer.hpp"
#include "base/process_wide.hpp"

namespace ddp::process_log {

namespace {

constexpr std::size_t kTakenBytesMax = 256 * 1024;
constexpr std::chrono::seconds kExitLimit{1};

class ProcessLog {
 public:
  std::atomic<int> rank{-1};
  base::LineWriter to_stderr{STDERR_FILENO, "libddp"};  // has a thread from its first line on
  base::EventLog log{wanted_level(), [this](base::LogLevel, const std::string& line) { write(line); }};
  std::mutex mutex;
  std::string taken;  // guarded by mutex: lines of earlier kept() calls

 private:
  void write(const std::string& line);
  base::LogLevel wanted_level();
};

// The process that has written a line. A forked child, which runs the exit handlers of its parent too, is another one.
std::atomic<pid_t> writing_process{0};

// exit() waits for no line any more, so each is waited for by who writes it.
std::atomic<bool> is_exiting{false};

void flush_at_exit() {
  is_exiting = true;
  if (writing_process.load() == ::getpid()) base::process_wide<ProcessLog>().to_stderr.flush(kExitLimit);
}

void ProcessLog::write(const std::string& line) {
  static std::atomic<bool> is_registered{false};  // no guard of the compiler's, which a fork may leave locked
  if (!is_registered.exchange(true)) static_cast<void>(std::atexit(flush_at_exit));
  writing_process = ::getpid();
  to_stderr(line);
  if (is_exiting) to_stderr.flush(kExitLimit);
}

base::LogLevel ProcessLog::wanted_level() {
  const char* const word = std::getenv("DDP_LOG_LEVEL");
  if (word == nullptr || *word == '\0') return base::LogLevel::off;
  if (const auto level = base::log_level_of(word)) return *level;
  write("libddp: DDP_LOG_LEVEL takes " + std::string(base::kLogLevelWords) + ", not '" + word + "'");
  return base::LogLevel::off;
}

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
