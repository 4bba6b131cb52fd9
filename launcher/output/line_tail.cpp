#include "launcher/output/line_tail.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/printable.hpp"
#include "base/unique_fd.hpp"
#include "rendezvous/membership/failure.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kTailLines = 12;
static_assert(kTailLines < rendezvous::kStderrLinesMax);
constexpr std::size_t kTailLineBytesMax = rendezvous::kStderrLineBytesMax;
constexpr std::size_t kFileTailBytes = 16 * 1024;

std::string without_colours(std::string_view line) {
  std::string out;
  while (!line.empty()) {
    if (line.substr(0, 2) == "\x1b[") {
      const auto end = line.find_first_not_of("0123456789;:", 2);
      if (end != std::string_view::npos && line[end] == 'm') {
        line.remove_prefix(end + 1);
        continue;
      }
    }
    out += line.front();
    line.remove_prefix(1);
  }
  return out;
}

}  // namespace

void LineTail::remember(std::string_view bytes) {
  constexpr std::size_t kEnough = kTailLines * kTailLineBytesMax;
  if (bytes.size() > kEnough) bytes.remove_prefix(bytes.size() - kEnough);
  for (const char c : bytes) {
    if (c == '\n') {
      if (!lines_.back().empty()) lines_.emplace_back();
      if (lines_.size() > kTailLines + 1) lines_.pop_front();
    } else if (c != '\r') {
      if (drawn_) lines_.back().clear();
      if (lines_.back().size() <= kTailLineBytesMax) lines_.back() += c;  // one more, so that it is cut visibly
    }
    drawn_ = c == '\r';
  }
}

std::vector<std::string> LineTail::lines() const {
  std::vector<std::string> out;
  for (const auto& line : lines_)
    if (!line.empty()) out.push_back(base::printable(without_colours(line), kTailLineBytesMax));
  return out;
}

std::vector<std::string> tail_of_file(const std::string& path) {
  const base::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
  std::string text(kFileTailBytes, '\0');
  const auto from = std::max<off_t>(0, info.st_size - static_cast<off_t>(text.size()));
  const auto length = ::pread(file.get(), text.data(), text.size(), from);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, length)));
  if (from > 0)
    text.erase(0, text.find('\n') == std::string::npos ? 0 : text.find('\n') + 1);  // most likely half a line
  LineTail tail;
  tail.remember(text);
  return tail.lines();
}

}  // namespace ddp::launcher
