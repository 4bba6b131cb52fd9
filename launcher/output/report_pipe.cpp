#include "launcher/output/report_pipe.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string>
#include <utility>

namespace ddp::launcher {
namespace {

constexpr std::chrono::milliseconds kReportLimit{2'000};  // the reader does nothing else that takes long

}  // namespace

ReportPipe ReportPipe::take() {
  const char* const value = std::getenv(kReportPipeVariable);
  if (value == nullptr) return {};
  const std::string text = value;
  ::unsetenv(kReportPipeVariable);
  int fd = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), fd);
  struct stat info {};
  const bool is_pipe = error == std::errc{} && end == text.data() + text.size() && fd > STDERR_FILENO &&
                       ::fstat(fd, &info) == 0 && S_ISFIFO(info.st_mode) &&
                       (::fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY;
  return is_pipe ? ReportPipe(base::UniqueFd(fd)) : ReportPipe();
}

ReportPipe::ReportPipe(base::UniqueFd pipe) : pipe_(std::move(pipe)) {
  ::fcntl(pipe_.get(), F_SETFD, FD_CLOEXEC);
  ::fcntl(pipe_.get(), F_SETFL, ::fcntl(pipe_.get(), F_GETFL) | O_NONBLOCK);
}

bool ReportPipe::write(std::string_view text) const {
  if (!pipe_) return false;
  std::string left(text);
  if (left.empty() || left.back() != '\n') left += '\n';
  const auto deadline = std::chrono::steady_clock::now() + kReportLimit;
  while (!left.empty()) {
    const auto written = ::write(pipe_.get(), left.data(), left.size());
    if (written > 0) {
      left.erase(0, static_cast<std::size_t>(written));
    } else if (written < 0 && errno == EAGAIN) {
      const auto time =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
      pollfd room{pipe_.get(), POLLOUT, 0};
      if (time <= 0 || ::poll(&room, 1, static_cast<int>(time)) == 0) return false;
    } else if (written == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace ddp::launcher
