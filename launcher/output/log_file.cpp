#include "launcher/output/log_file.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace ddp::launcher {

int LogFile::write_all(std::string_view& bytes) {
  while (!bytes.empty()) {
    const auto written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written > 0) {
      mid_line_ = bytes[static_cast<std::size_t>(written) - 1] != '\n';
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (written == 0 || errno != EINTR) {
      return written == 0 ? ENOSPC : errno;
    }
  }
  return 0;
}

int LogFile::append(std::string_view bytes) {
  int error = 0;
  if (missing_bytes_ > 0) {
    // The rest of a line whose beginning is missing is of no use.
    const auto newline = missing_mid_line_ ? bytes.find('\n') : std::string_view::npos;
    const auto skipped = !missing_mid_line_ ? 0 : newline == std::string_view::npos ? bytes.size() : newline + 1;
    missing_bytes_ += skipped;
    bytes.remove_prefix(skipped);
    missing_mid_line_ = missing_mid_line_ && newline == std::string_view::npos;
    if (bytes.empty()) return is_dropped_ ? 0 : ENOSPC;
    error = write_note();
  }
  if (error == 0) error = write_all(bytes);
  if (error == 0 || bytes.empty()) return error;
  missing_bytes_ += bytes.size();
  missing_mid_line_ = bytes.back() != '\n';
  is_dropped_ = false;
  return error;
}

void LogFile::skip(std::size_t bytes, bool is_mid_line) {
  is_dropped_ = missing_bytes_ == 0 || is_dropped_;
  missing_bytes_ += bytes;
  missing_mid_line_ = is_mid_line;
}

int LogFile::write_note() {
  const auto note = std::string(mid_line_ ? "\n" : "") + "ddprun: " + std::to_string(missing_bytes_) +
                    " bytes of output are missing here, because they could not be written\n";
  std::string_view left = note;
  const int error = write_all(left);
  if (error == 0) missing_bytes_ = 0;
  return error;
}

}  // namespace ddp::launcher
