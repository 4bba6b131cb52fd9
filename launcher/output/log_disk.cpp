#include "launcher/output/log_disk.hpp"

#include <utility>

#include "base/quiet_thread.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kTaskBytes = std::size_t{64} << 10U;  // that small pieces of one file are joined to

}  // namespace

LogDisk::LogDisk(Options options) : options_(std::move(options)) {
  thread_ = base::start_quiet_thread([this] { run(); });
}

LogDisk::~LogDisk() {
  {
    const std::lock_guard lock(mutex_);
    queue_missing();
    is_ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void LogDisk::append(const File& file, std::string_view bytes) {
  if (bytes.empty()) return;
  bool is_first_dropped = false;
  {
    std::unique_lock lock(mutex_);
    const bool was_dropping = is_dropping_;
    if (has_room_for(bytes.size(), lock)) {
      queue_missing();
      queue(file, bytes);
    } else {
      auto& missing = missing_[file.get()];
      missing.file = file;
      missing.bytes += bytes.size();
      missing.is_mid_line = bytes.back() != '\n';
      is_first_dropped = !was_dropping;
    }
    changed_.notify_all();
  }
  if (is_first_dropped) options_.lost(*file, 0);
}

// Waits for it, as long as the disk takes something.
bool LogDisk::has_room_for(std::size_t bytes, std::unique_lock<std::mutex>& lock) {
  const auto fits = [&] { return queued_bytes_ == 0 || queued_bytes_ + bytes <= options_.queued_bytes_max; };
  if (is_dropping_) {
    is_dropping_ = queued_bytes_ > options_.queued_bytes_max / 2;
    return !is_dropping_;
  }
  while (!fits()) {
    const auto before = written_count_;
    if (!changed_.wait_for(lock, options_.hold_limit, [&] { return written_count_ != before; })) {
      is_dropping_ = true;
      return false;
    }
  }
  return true;
}

// With the last piece if that is not being written yet.
void LogDisk::queue(const File& file, std::string_view bytes) {
  auto* const last = tasks_.size() > 1 ? &tasks_.back() : nullptr;
  if (last != nullptr && last->file == file && !last->bytes.empty() &&
      last->bytes.size() + bytes.size() <= kTaskBytes) {
    last->bytes += bytes;
    queued_bytes_ += bytes.size();
    return;
  }
  tasks_.push_back({.file = file, .bytes = std::string(bytes)});
  queued_bytes_ += bytes.size() + sizeof(Task);
}

void LogDisk::queue_missing() {
  for (auto& [key, missing] : std::exchange(missing_, {}))
    tasks_.push_back(
        {.file = std::move(missing.file), .missing_bytes = missing.bytes, .is_mid_line = missing.is_mid_line});
}

void LogDisk::end(const File& file) {
  const std::lock_guard lock(mutex_);
  queue_missing();
  tasks_.push_back({.file = file, .is_end = true});
  changed_.notify_all();
}

void LogDisk::then(std::function<void()> done) {
  const std::lock_guard lock(mutex_);
  queue_missing();
  tasks_.push_back({.done = std::move(done)});
  changed_.notify_all();
}

void LogDisk::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_ending_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    auto task = std::move(tasks_.front());
    lock.unlock();
    carry_out(task);
    task.file.reset();
    lock.lock();
    tasks_.pop_front();
    if (!task.bytes.empty()) queued_bytes_ -= task.bytes.size() + sizeof(Task);
    ++written_count_;
    changed_.notify_all();
    if (!options_.wrote) continue;
    lock.unlock();
    options_.wrote();
    lock.lock();
  }
}

void LogDisk::carry_out(Task& task) {
  if (task.done) return task.done();
  if (task.missing_bytes > 0) task.file->skip(task.missing_bytes, task.is_mid_line);
  const int error = task.is_end ? task.file->end() : task.file->append(task.bytes);
  if (error != 0) options_.lost(*task.file, error);
}

}  // namespace ddp::launcher
