// Adds to log files on a thread of its own, in order and in bounded memory.
//
// Drop rule: Options::queued_bytes_max wait for the disk. If there is no room, append() waits. If the disk takes
// nothing for Options::hold_limit, what does not fit is dropped from then on, until half of the room is free again.
// Each file gets a line that says how many bytes are missing there (log_file.hpp). So a disk that is merely slower than
// the workers loses nothing, and one that stalls holds nobody up for longer than that limit.
//
// Threads: the members are one thread's; the callbacks run on the disk's own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "launcher/output/log_file.hpp"

namespace ddp::launcher {

class LogDisk {
 public:
  using File = std::shared_ptr<LogFile>;

  struct Options {
    std::size_t queued_bytes_max = std::size_t{16} << 20U;  // with what the queue takes itself
    std::chrono::milliseconds hold_limit{2'000};
    // Something of it could not be written, or (error 0) was dropped.
    std::function<void(const LogFile& file, int error)> lost;
    std::function<void()> wrote{};  // the disk has taken something
  };

  // Throws std::system_error where threads run out.
  explicit LogDisk(Options options);
  ~LogDisk();  // writes what is left, however long that takes
  LogDisk(const LogDisk&) = delete;

  void append(const File& file, std::string_view bytes);

  // Nothing more will be added to it: says in it what is missing at its end.
  void end(const File& file);

  // Calls `done` when all of before is written.
  void then(std::function<void()> done);

 private:
  struct Missing {
    File file;
    std::size_t bytes = 0;
    bool is_mid_line = false;
  };
  struct Task {
    File file{};
    std::string bytes{};
    std::size_t missing_bytes = 0;  // before `bytes`
    bool is_mid_line = false;       // whether the last of them was no newline
    bool is_end = false;
    std::function<void()> done{};
  };

  bool has_room_for(std::size_t bytes, std::unique_lock<std::mutex>& lock);
  void queue(const File& file, std::string_view bytes);
  void queue_missing();
  void run();
  void carry_out(Task& task);

  const Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;  // of anything below
  std::deque<Task> tasks_;           // the first one is being worked on
  std::size_t queued_bytes_ = 0;     // of tasks_, and of the bytes in them
  std::size_t written_count_ = 0;    // tasks that are done
  bool is_dropping_ = false, is_ending_ = false;
  std::map<LogFile*, Missing> missing_;  // dropped, and not in tasks_ yet
  std::thread thread_;
};

}  // namespace ddp::launcher
