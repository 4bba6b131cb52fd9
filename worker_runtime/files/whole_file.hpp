// Writes a file of diagnostics that appears under its name whole, or not at all.
//
// It is not brought to disk, as a checkpoint is (worker_runtime/checkpoint/atomic_file.hpp): the end of the program
// can't hurt it, that of the machine may, and nobody waits for a disk while a job recovers.
//
// Threads: one at a time. Calls throw std::system_error, whose text has the path; nothing is left behind then.
#pragma once

#include <string>
#include <string_view>

#include "base/unique_fd.hpp"

namespace ddp::files {

class WholeFile {
 public:
  explicit WholeFile(std::string path);
  ~WholeFile();  // removes what was not committed
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  void append(std::string_view bytes);
  void commit();  // a file of that name makes room, in one step

 private:
  void write_out();
  [[noreturn]] void fail(const char* doing) const;

  std::string path_;
  std::string temporary_;  // empty once there is no such file
  base::UniqueFd fd_;
  std::string buffer_;
};

}  // namespace ddp::files
