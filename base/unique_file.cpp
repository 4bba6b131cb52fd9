#include "base/unique_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <vector>

#include "base/process_wide.hpp"
#include "base/quiet_thread.hpp"

namespace ddp::base {
namespace {

class Closer {
 public:
  void close(UniqueFd fd) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(fd));
    changed_.notify_all();
    if (has_thread_) return;
    try {
      start_quiet_thread([this] { run(); }).detach();  // process_wide() never destroys this object
      has_thread_ = true;
    } catch (const std::exception&) {  // the next file tries again
    }
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !waiting_.empty(); });
      auto closing = std::exchange(waiting_, {});
      lock.unlock();
      closing.clear();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;  // of waiting_
  std::vector<UniqueFd> waiting_;
  bool has_thread_ = false;
};

}  // namespace

bool is_file(int fd) {
  struct statx quick {};
  if (::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &quick) == 0)
    return S_ISREG(quick.stx_mode) || S_ISDIR(quick.stx_mode);
  struct stat info {};  // some sandboxes refuse statx()
  return ::fstat(fd, &info) != 0 || S_ISREG(info.st_mode) || S_ISDIR(info.st_mode);
}

void close_without_waiting(UniqueFd fd) {
  if (!fd || !is_file(fd.get())) return;
  try {
    process_wide<Closer>().close(std::move(fd));
  } catch (const std::exception&) {  // no memory; UniqueFd has closed it
  }
}

}  // namespace ddp::base
