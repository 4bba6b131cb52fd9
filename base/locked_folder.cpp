#include "base/locked_folder.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <future>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/quiet_thread.hpp"

namespace ddp::base {
namespace {

constexpr std::string_view kUnique = "XXXXXX";  // of mkdtemp

bool is_at(int folder, const std::string& path) {
  struct stat open {
  }, there{};
  return ::fstat(folder, &open) == 0 && ::lstat(path.c_str(), &there) == 0 && open.st_dev == there.st_dev &&
         open.st_ino == there.st_ino;
}

struct Locking {
  enum class Result { taken, is_anothers, none_to_be_had };  // the last: the file system has no locks
  Result result;
  UniqueFd folder;  // empty if it could not be opened
};

Locking lock_folder(const std::string& path) {
  UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder && ::flock(folder.get(), LOCK_EX | LOCK_NB) == 0) return {Locking::Result::taken, std::move(folder)};
  const bool is_anothers = errno == EWOULDBLOCK || errno == ENOENT;  // who has removed it
  return {is_anothers ? Locking::Result::is_anothers : Locking::Result::none_to_be_had, std::move(folder)};
}

// Empty if others still hold it then, or no thread can be had: this one must not wait for as long as they like.
UniqueFd lock_within(std::chrono::milliseconds limit, UniqueFd folder) {
  std::packaged_task<UniqueFd()> lock([folder = std::move(folder)]() mutable {
    return folder && ::flock(folder.get(), LOCK_EX) == 0 ? std::move(folder) : UniqueFd();
  });
  auto locked = lock.get_future();
  try {
    start_quiet_thread(std::move(lock)).detach();
  } catch (const std::system_error&) {
    return {};
  }
  return locked.wait_for(limit) == std::future_status::ready ? locked.get() : UniqueFd();
}

}  // namespace

LockedFolder make_locked_folder(const std::string& parent, const std::string& start) {
  while (true) {  // again if another process took the folder for one that was left
    LockedFolder out{parent + "/" + start + std::string(kUnique), {}};
    if (::mkdtemp(out.path.data()) == nullptr) throw std::system_error(errno, std::generic_category(), out.path);
    auto [result, folder] = lock_folder(out.path);
    if (result == Locking::Result::none_to_be_had) return out;
    if (result == Locking::Result::is_anothers || !is_at(folder.get(), out.path)) continue;
    out.lock = std::move(folder);
    return out;
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
    auto [result, lock] = lock_folder(path);
    if (result == Locking::Result::is_anothers && ending.is_ending && ending.is_ending(path.string())) {
      if (!wait_ends) wait_ends = Clock::now() + ending.limit;
      lock = lock_within(std::chrono::ceil<std::chrono::milliseconds>(*wait_ends - Clock::now()), std::move(lock));
      if (lock) result = Locking::Result::taken;
    }
    if (result == Locking::Result::taken) use(path.string());
  }
}

}  // namespace ddp::base
