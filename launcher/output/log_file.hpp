// A log file that is added to, and what becomes of it on a full disk, or where something had to be dropped: it goes on
// once there is room again, at the beginning of a line, and a line in it says how much is missing.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "base/unique_file.hpp"

namespace ddp::launcher {

class LogFile {
 public:
  LogFile(base::UniqueFile file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}

  // 0, or the errno for which something of it could not be written.
  int append(std::string_view bytes);

  // The next bytes are dropped; whether the last of them is no newline.
  void skip(std::size_t bytes, bool is_mid_line);

  // Says what is missing at the end of the file. As append().
  int end() { return missing_bytes_ > 0 ? write_note() : 0; }

  const std::string& path() const { return path_; }

 private:
  int write_all(std::string_view& bytes);  // takes away what is written
  int write_note();                        // of what is missing

  base::UniqueFile file_;
  std::string path_;
  bool mid_line_ = false;          // whether the last byte in the file is no newline
  std::size_t missing_bytes_ = 0;  // since the last that was written
  bool missing_mid_line_ = false;  // whether the last of them was no newline
  bool is_dropped_ = false;        // whether they were dropped, and the disk refused none of them
};

}  // namespace ddp::launcher
