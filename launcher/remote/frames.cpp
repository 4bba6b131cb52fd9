#include "launcher/remote/frames.hpp"

#include <algorithm>
#include <utility>

namespace ddp::launcher {
namespace {

constexpr std::size_t kFrameHeadBytes = 5;

}  // namespace

std::string encoded(FrameKind kind, std::string_view bytes) {
  std::string out(1, static_cast<char>(kind));
  for (const int shift : {24, 16, 8, 0}) out += static_cast<char>(bytes.size() >> shift & 0xff);
  out += bytes;
  return out;
}

std::vector<Frame> FrameReader::feed(std::string_view bytes) {
  std::vector<Frame> out;
  if (broken_) return out;
  unread_ += bytes;
  std::size_t at = 0;
  while (unread_.size() - at >= kFrameHeadBytes) {
    std::size_t length = 0;
    for (std::size_t i = 1; i < kFrameHeadBytes; ++i)
      length = length << 8 | static_cast<unsigned char>(unread_[at + i]);
    if (length > kFrameBytesMax) {
      broken_ = true;
      break;
    }
    if (unread_.size() - at - kFrameHeadBytes < length) break;
    out.push_back({static_cast<FrameKind>(unread_[at]), unread_.substr(at + kFrameHeadBytes, length)});
    at += kFrameHeadBytes + length;
  }
  unread_.erase(0, at);
  return out;
}

std::string MarkFinder::feed(std::string_view bytes) {
  unread_ += bytes;
  if (found_) return {};
  const auto at = unread_.find(kRemoteMark);
  found_ = at != std::string::npos;
  const auto end = found_ ? at : unread_.size() - std::min(unread_.size(), kRemoteMark.size() - 1);
  auto out = unread_.substr(0, end);
  unread_.erase(0, found_ ? at + kRemoteMark.size() : end);
  return out;
}

std::optional<std::string> MarkFinder::take_rest() {
  if (!found_) return {};
  return std::exchange(unread_, {});
}

std::string MarkFinder::take_unmarked() { return found_ ? std::string() : std::exchange(unread_, {}); }

}  // namespace ddp::launcher
