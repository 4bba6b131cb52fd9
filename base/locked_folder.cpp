#include "base/locked_folder.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/with_limit.hpp"

namespace ddp::base {
namespace {

constexpr std::string_view kUnique = "XXXXXX";  // of mkdtemp

bool is_at(int folder, const std::string& path) {
  struct stat open {
  }, there{};
  return ::fstat(folder, &open) == 0 && ::lstat(path.c_str(), &there) == 0 && open.st_dev == there.st_dev &&
         open.st_ino == there.st_ino;
}

enum class FolderLock { taken, is_anothers, none_to_be_had };  // the last: the file system has none

UniqueFd open_folder(const std::string& folder) {
  return UniqueFd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

FolderLock lock_folder(const std::string& folder, UniqueFd& fd) {
  fd = open_folder(folder);
  if (fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return FolderLock::taken;
  const bool is_anothers = errno == EWOULDBLOCK || errno == ENOENT;  // who has removed it
  fd.reset();
  return is_anothers ? FolderLock::is_anothers : FolderLock::none_to_be_had;
}

// Empty if others still hold it then, or no thread can be had: this one must not wait for as long as they like.
UniqueFd lock_folder_within(std::chrono::milliseconds limit, const std::string& folder) {
  const auto fd = std::make_shared<UniqueFd>(open_folder(folder));
  const auto is_locked = run_with_limit(limit, [fd, caller = std::this_thread::get_id()] {
    const bool may_wait = std::this_thread::get_id() != caller;
    return std::string(*fd && may_wait && ::flock(fd->get(), LOCK_EX) == 0 ? "yes" : "");
  });
  return is_locked.value_or("").empty() ? UniqueFd() : std::move(*fd);
}

}  // namespace

LockedFolder make_locked_folder(const std::string& parent, const std::string& start) {
  while (true) {  // again if another process took the folder for one that was left
    LockedFolder out{parent + "/" + start + std::string(kUnique), {}};
    if (::mkdtemp(out.path.data()) == nullptr) throw std::system_error(errno, std::generic_category(), out.path);
    const auto got = lock_folder(out.path, out.lock);
    if (got == FolderLock::none_to_be_had || (got == FolderLock::taken && is_at(out.lock.get(), out.path))) return out;
  }
}

void for_each_left_folder(const std::string& parent, const std::string& start,
                          const std::function<void(const std::string& path)>& use, const EndingHolders& ending) {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> wait_ends;
  std::error_code ignored;
  for (std::filesystem::directory_iterator entry(parent, ignored), end; entry != end;) {
    const auto path = entry->path();
    entry.increment(ignored);
    struct stat info {};
    const auto name = path.filename().string();
    if (name.compare(0, start.size(), start) != 0 || name.size() != start.size() + kUnique.size()) continue;
    if (::lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid()) continue;
    UniqueFd fd;
    const auto got = lock_folder(path, fd);
    if (got == FolderLock::is_anothers && ending.is_ending && ending.is_ending(path.string())) {
      if (!wait_ends) wait_ends = Clock::now() + ending.limit;
      fd = lock_folder_within(std::chrono::ceil<std::chrono::milliseconds>(*wait_ends - Clock::now()), path.string());
    }
    if (fd) use(path.string());
  }
}

}  // namespace ddp::base
