#include "launcher/output/line_merger.hpp"

#include <algorithm>
#include <utility>

namespace ddp::launcher {
namespace {

// A longer line is passed on in pieces, because somebody who never ends a line must not fill our memory.
constexpr std::size_t kLineBytesMax = 64 * 1024;

constexpr std::string_view kWipeLine = "\r\x1b[K";

}  // namespace

std::string LineMerger::prefix_of(Source source) const {
  const bool wanted = options_.prefix && options_.terminal && ranks_.size() > 1 && source.rank != kAgentSource;
  return wanted ? "[" + std::to_string(source.rank) + "] " : std::string();
}

std::string LineMerger::feed(Source source, std::string_view bytes) {
  std::string out;
  if (bytes.empty()) return out;
  if (source.rank != kAgentSource) ranks_.insert(source.rank);
  if (options_.terminal)
    feed_terminal(source, bytes, out);
  else
    feed_whole_lines(unfinished_[source], bytes, out);
  if (out.empty() || options_.terminal) return out;
  if (mid_line_ && source.rank == kAgentSource) out.insert(0, "\n");  // ddprun's own lines begin at a line's beginning
  mid_line_ = out.back() != '\n';
  return out;
}

std::string LineMerger::end(Source source) {
  std::string out;
  const auto found = unfinished_.find(source);
  if (found == unfinished_.end()) return out;
  if (!found->second.empty()) {
    if (options_.terminal) {
      feed_terminal(source, "\n", out);  // the shell's prompt belongs on a line of its own
    } else {
      out = found->second;
      if (ranks_.size() > 1 && out.back() != '\r') out += '\n';
      mid_line_ = out.back() != '\n';
    }
  }
  unfinished_.erase(source);
  if (shown_ && *shown_ == source) shown_.reset();
  return out;
}

void LineMerger::feed_whole_lines(std::string& line, std::string_view bytes, std::string& out) const {
  line += bytes;
  // A '\r' at the very end may be half of "\r\n", so it stays until more is known.
  std::size_t whole = line.rfind('\n');
  whole = whole == std::string::npos ? 0 : whole + 1;
  if (const auto carriage = std::string_view(line).substr(0, line.size() - 1).rfind('\r'); carriage != std::string::npos)
    whole = std::max(whole, carriage + 1);
  if (whole == 0 && line.size() > kLineBytesMax) whole = line.size();
  out.append(line, 0, whole);
  line.erase(0, whole);
}

// Puts text of the line that the cursor is in, with the prefix wherever a line or a redrawing begins.
void LineMerger::draw(Source source, std::string_view text, std::string& out) {
  auto& line = unfinished_[source];
  const auto prefix = prefix_of(source);
  for (std::size_t at = 0; at < text.size();) {
    auto stop = text.find('\r', at);
    stop = stop == std::string_view::npos ? text.size() : stop;
    if (stop > at) {
      if (line.empty() && text[at] != '\n') out += prefix;
      out += text.substr(at, stop - at);
      line += text.substr(at, stop - at);
    }
    if (stop < text.size()) {
      out += '\r';
      line.clear();
    }
    at = stop + 1;
  }
  if (line.size() > kLineBytesMax) line.erase(0, line.size() - kLineBytesMax / 2);
}

void LineMerger::feed_terminal(Source source, std::string_view bytes, std::string& out) {
  while (!bytes.empty()) {
    const auto newline = bytes.find('\n');
    const bool complete = newline != std::string_view::npos;
    const auto text = bytes.substr(0, complete ? newline + 1 : bytes.size());
    bytes.remove_prefix(text.size());

    const bool in_the_way = shown_ && !(*shown_ == source);
    if (in_the_way && !complete) {  // kept back until the other line ends or this one does
      auto& line = unfinished_[source];
      line += text;
      if (const auto carriage = line.rfind('\r'); carriage != std::string::npos && carriage + 1 < line.size())
        line.erase(0, carriage + 1);
      if (line.size() > kLineBytesMax) line.erase(0, line.size() - kLineBytesMax / 2);
      continue;
    }
    if (in_the_way) out += columns_ > 0 && unfinished_[*shown_].size() >= columns_ ? "\n" : kWipeLine;
    if (!shown_ || in_the_way) {  // what was kept back of this source comes first
      const auto kept_back = std::exchange(unfinished_[source], {});
      draw(source, kept_back, out);
    }
    draw(source, text, out);
    if (complete) unfinished_[source].clear();
    if (in_the_way)
      out += prefix_of(*shown_) + unfinished_[*shown_];
    else
      shown_ = complete ? std::nullopt : std::optional(source);
  }
}

}  // namespace ddp::launcher
