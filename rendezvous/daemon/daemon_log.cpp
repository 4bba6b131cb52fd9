#include "rendezvous/daemon/daemon_log.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/unique_fd.hpp"
#include "base/write_all.hpp"
#include "ddp/error.hpp"

namespace ddp::rendezvous {
namespace {

// For all jobs together.
constexpr int kLinesAtOnce = 10'000;
constexpr std::chrono::milliseconds kLinePeriod{100};

constexpr std::chrono::seconds kEndLimit{2};

base::UniqueFd open_for_appending(const std::string& path) {
  return base::UniqueFd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600));
}

// Runs on the file's thread. Returns 0 or errno.
int append(const std::string& path, std::string_view text) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && static_cast<std::size_t>(info.st_size) > DaemonLog::kFileBytesMax &&
      std::rename(path.c_str(), (path + ".old").c_str()) != 0)
    return errno;
  const auto file = open_for_appending(path);
  if (!file) return errno;
  return base::write_all(file.get(), text);
}

// Errors that another start would meet again.
bool is_wrong_folder(int error) {
  return error == ENOENT || error == ENOTDIR || error == EACCES || error == EISDIR || error == EROFS;
}

base::LineLimit limit() {
  return base::LineLimit(kLinesAtOnce, kLinePeriod, [](const std::string& line, std::size_t left_out) {
    return line + " left_out=" + std::to_string(left_out);
  });
}

}  // namespace

DaemonLog::DaemonLog(boost::asio::io_context& io, const DaemonLogOptions& options)
    : events_(
          io, [this](const std::string& line) { write_(line); }, limit()),
      serious_(
          io, [this](const std::string& line) { write_(line); }, limit()),
      log_(options.level,
           [this](base::LogLevel level, const std::string& line) {
             level < base::LogLevel::warning ? events_(line) : serious_(line);
           }),
      warnings_(io, [this](const base::WarningLine& line) {
        log_({"note", base::LogFields().add("text", line.text), base::LogLevel::warning}, line.where);
      }) {
  if (!options.directory) return;
  path_ = *options.directory + "/" + kFileName;
  if (!open_for_appending(path_)) {
    const int error = errno;
    if (is_wrong_folder(error))
      throw InvalidArgument("--log-dir: " + path_ + " can't be written: " + std::strerror(error));
    note_failure(error);
  }
  file_.emplace(io, base::FileThread::Options{.end_limit = kEndLimit});
}

DaemonLog::~DaemonLog() {
  if (is_wanted_again_) post_kept();
}

void DaemonLog::write_kept() {
  if (path_.empty()) return;
  if (std::exchange(is_writing_, true)) {
    is_wanted_again_ = true;
    return;
  }
  post_kept();
}

void DaemonLog::post_kept() {
  auto error = std::make_shared<int>(0);
  // One write at a time, and at the end one more, so none is refused.
  static_cast<void>(file_->post([path = path_, text = log_.take_kept(), error] { *error = append(path, text); },
                                [this, error] {
                                  is_writing_ = false;
                                  if (*error != 0) note_failure(*error);
                                  if (std::exchange(is_wanted_again_, false)) write_kept();
                                }));
}

void DaemonLog::note_failure(int error) {
  log_({"log_file_not_written", base::LogFields().add("path", path_).add("why", std::strerror(error)),
        base::LogLevel::warning});
}

}  // namespace ddp::rendezvous
