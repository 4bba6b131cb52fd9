#include "worker_runtime/checkpoint/atomic_file.hpp"

#include "ddp/error.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <system_error>
#include <utility>

namespace ddp::checkpoint {
namespace {

constexpr const char* kTemporaryPrefix = ".checkpoint-";
constexpr const char* kTemporarySuffix = ".partial";
constexpr int kAttemptsMax = 100;  // at a temporary file; one fails only where another process comes in between
constexpr std::size_t kWriteBytesMax = std::size_t{1} << 30;    // one write() takes a little less than 2 GiB at most
constexpr std::size_t kDirectBytesMin = std::size_t{1} << 20;   // less is not worth two more calls
constexpr std::size_t kDirectBytesMax = std::size_t{64} << 20;  // of one write(), while which its pages are pinned
constexpr std::size_t kDirectAlignment = 4096;  // of memory, place in the file and length: enough for any block device

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& doing, int error) {
  throw CheckpointError("can't write " + path.string() + ": " + doing + ": " + std::generic_category().message(error) +
                        "\nwhere: saving a checkpoint; what was there before is untouched\n"
                        "try:   a folder that exists, that this user may write to, with enough free space");
}

std::filesystem::path directory_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

bool is_temporary(const std::string& name) {
  const std::string prefix = kTemporaryPrefix;
  const std::string suffix = kTemporarySuffix;
  return name.size() > prefix.size() + suffix.size() && name.compare(0, prefix.size(), prefix) == 0 &&
         name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) { create(); }

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::create() {
  int error = EEXIST;
  for (int attempt = 0; attempt < kAttemptsMax && error == EEXIST; ++attempt) {
    std::uint64_t random = 0;
    if (::getrandom(&random, sizeof random, 0) != sizeof random) fail(path_, "drawing a name", errno);
    const auto temporary = directory_of(path_) / (kTemporaryPrefix + std::to_string(random) + kTemporarySuffix);
    fd_.reset(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!fd_) {
      error = errno;
    } else if (lock()) {
      temporary_ = temporary;
      return;
    } else {
      ::unlink(temporary.c_str());
    }
  }
  fail(path_, "making a temporary file beside it", error);
}

// False where remove_abandoned(), in another process, came between the file's making and its lock: the file is gone, or
// about to go. A file system without locks loses only the tidying up after a dead writer, as that fails there too.
bool AtomicFile::lock() {
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) return errno != EWOULDBLOCK;
  struct stat status {};
  return ::fstat(fd_.get(), &status) != 0 || status.st_nlink > 0;
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const auto* const all = static_cast<const char*>(data);
  for (std::size_t done = write_directly(all, bytes); done < bytes;) {
    const ssize_t written = ::write(fd_.get(), all + done, std::min(bytes - done, kWriteBytesMax));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail(path_, "writing", written < 0 ? errno : EIO);
    done += static_cast<std::size_t>(written);
  }
  written_ += bytes;
}

// Returns how many bytes it has written: none if they are few or not aligned, and fewer than all where the file system
// or the device refuses. The caller writes the rest, and so comes to the same error if there is one.
std::size_t AtomicFile::write_directly(const char* data, std::size_t bytes) {
  const bool is_aligned = (reinterpret_cast<std::uintptr_t>(data) | written_) % kDirectAlignment == 0;
  if (bytes < kDirectBytesMin || !is_aligned) return 0;
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd_.get(), F_SETFL, flags | O_DIRECT) != 0) return 0;
  const std::size_t whole = bytes / kDirectAlignment * kDirectAlignment;
  std::size_t done = 0;
  while (done < whole && done % kDirectAlignment == 0) {
    const ssize_t written = ::write(fd_.get(), data + done, std::min(whole - done, kDirectBytesMax));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    done += static_cast<std::size_t>(written);
  }
  if (::fcntl(fd_.get(), F_SETFL, flags) != 0) fail(path_, "writing", errno);
  return done;
}

void AtomicFile::commit(Existing existing) {
  if (::fsync(fd_.get()) != 0) fail(path_, "bringing it to disk", errno);
  give_name(existing);
  temporary_.clear();
  if (::close(fd_.release()) != 0) fail(path_, "closing it", errno);
  sync_directory(directory_of(path_));
}

void AtomicFile::give_name(Existing existing) {
  const char* from = temporary_.c_str();
  const char* to = path_.c_str();
  const unsigned flags = existing == Existing::refuse ? RENAME_NOREPLACE : 0;
  if (::renameat2(AT_FDCWD, from, AT_FDCWD, to, flags) == 0) return;
  // File systems that know no flags (NFS among them) have hard links, which never replace anything either.
  if (errno != EINVAL || existing == Existing::replace) fail(path_, "giving the file its name", errno);
  if (::link(from, to) != 0) fail(path_, "giving the file its name", errno);
  ::unlink(from);
}

void sync_directory(const std::filesystem::path& directory) {
  const base::UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) fail(directory, "opening the folder", errno);
  // EINVAL: a file system that can't, and that needs it no more than it offers it.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) fail(directory, "bringing the folder to disk", errno);
}

void remove_abandoned(const std::filesystem::path& directory) {
  std::error_code error;  // what can't be tidied up now will be the next time
  std::filesystem::directory_iterator next(directory, error);
  for (; !error && next != std::filesystem::directory_iterator(); next.increment(error)) {
    const std::filesystem::path& path = next->path();
    if (!is_temporary(path.filename().string())) continue;
    const base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) ::unlink(path.c_str());
  }
}

}  // namespace ddp::checkpoint
