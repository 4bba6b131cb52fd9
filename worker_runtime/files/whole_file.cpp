#include "worker_runtime/files/whole_file.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <system_error>
#include <utility>

namespace ddp::files {

namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 16;
constexpr int kAttemptsMax = 100;

// Beside the file itself, so that it can take its name. No part of that is in it: who looks for all files that begin
// with a certain name must not find it.
std::string temporary_name(const std::string& path) {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != sizeof random) return {};
  const auto slash = path.rfind('/');
  return path.substr(0, slash == std::string::npos ? 0 : slash + 1) + "." + std::to_string(random) + ".partial";
}

}  // namespace

WholeFile::WholeFile(std::string path) : path_(std::move(path)) {
  errno = EEXIST;
  for (int attempt = 0; attempt < kAttemptsMax && errno == EEXIST && !fd_; ++attempt) {
    temporary_ = temporary_name(path_);
    fd_.reset(temporary_.empty() ? -1 : ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  }
  if (!fd_) {
    temporary_.clear();
    fail("making a temporary file beside it");
  }
  buffer_.reserve(kBufferBytes);
}

WholeFile::~WholeFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void WholeFile::append(std::string_view bytes) {
  buffer_ += bytes;
  if (buffer_.size() >= kBufferBytes) write_out();
}

void WholeFile::commit() {
  write_out();
  if (::close(fd_.release()) != 0) fail("closing it");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("giving it its name");
  temporary_.clear();
}

void WholeFile::write_out() {
  std::string_view left = buffer_;
  while (!left.empty()) {
    const ssize_t written = ::write(fd_.get(), left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = EIO;
    if (written <= 0) fail("writing");
    left.remove_prefix(static_cast<std::size_t>(written));
  }
  buffer_.clear();
}

void WholeFile::fail(const char* doing) const {
  throw std::system_error(errno, std::generic_category(), "can't write " + path_ + ": " + doing);
}

}  // namespace ddp::files
