// Owns a descriptor that may be a file. close() of a file can wait for its disk: network file systems, and those of
// processes, write then what they still hold. So one thread of the process closes files, and nobody waits for it.
//
// The files that wait to be closed are bounded by the descriptors of the process. At the end of the process the kernel
// closes them.
//
// Threads: any.
#pragma once

#include <utility>

#include "base/unique_fd.hpp"

namespace ddp::base {

// Whether it is a regular file or a folder. Asks no disk, unlike fstat(), unless a sandbox refuses statx(). True where
// the kernel cannot tell.
bool is_file(int fd);

// Closes it on the thread if it is a file, else at once. While no thread can be had, files stay open.
void close_without_waiting(UniqueFd fd);

class UniqueFile {
 public:
  UniqueFile() = default;
  UniqueFile(UniqueFd fd) : fd_(std::move(fd)) {}  // NOLINT(google-explicit-constructor)
  UniqueFile(UniqueFile&& other) noexcept = default;
  UniqueFile& operator=(UniqueFile&& other) noexcept {
    if (this != &other) reset(), fd_ = std::move(other.fd_);
    return *this;
  }
  ~UniqueFile() { reset(); }

  int get() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  void reset() {
    if (fd_) close_without_waiting(std::move(fd_));
  }

 private:
  UniqueFd fd_;
};

}  // namespace ddp::base
