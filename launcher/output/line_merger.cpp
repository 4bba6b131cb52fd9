#include "launcher/output/line_merger.hpp"

#include <algorithm>
#include <utility>

#include "launcher/output/whole_lines.hpp"

namespace ddp::launcher {
namespace {

constexpr std::string_view kWipeLine = "\r\x1b[K";

}  // namespace

std::string LineMerger::prefix_of(Source source) const {
  return options_.prefix && source.rank != kAgentSource ? options_.prefix(source, ranks_.size() > 1) : std::string();
}

std::string LineMerger::feed(Source source, std::string_view bytes) {
  std::string out;
  if (bytes.empty()) return out;
  if (source.rank != kAgentSource) ranks_.insert(source.rank);
  if (options_.terminal)
    feed_terminal(source, bytes, out);
  else
    feed_whole_lines(source, bytes, out);
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
      pass_on(source, found->second, out);
      in_pieces_.erase(source);
      if (ranks_.size() > 1 && out.back() != '\r') out += '\n';
      mid_line_ = out.back() != '\n';
    }
  }
  unfinished_.erase(source);
  if (shown_ && *shown_ == source) shown_.reset();
  return out;
}

void LineMerger::feed_whole_lines(Source source, std::string_view bytes, std::string& out) {
  auto& kept = unfinished_[source];
  if (!kept.empty()) bytes = kept += bytes;
  // A '\r' at the very end may be half of "\r\n", so it stays until more is known.
  const auto newline = bytes.rfind('\n');
  std::size_t whole = newline == std::string_view::npos ? 0 : newline + 1;
  if (const auto carriage = bytes.substr(whole, std::max(whole + 1, bytes.size()) - 1 - whole).rfind('\r');
      carriage != std::string_view::npos)
    whole += carriage + 1;
  if (whole == 0 && bytes.size() > kLineBytesMax) whole = bytes.size();
  pass_on(source, bytes.substr(0, whole), out);
  if (kept.empty())
    kept = bytes.substr(whole);
  else
    kept.erase(0, whole);
}

void LineMerger::pass_on(Source source, std::string_view bytes, std::string& out) {
  if (bytes.empty()) return;
  const auto prefix = prefix_of(source);
  if (prefix.empty()) {
    out += bytes;
    return;
  }
  out.reserve(bytes.size() + bytes.size() / 4);
  bool begins = in_pieces_.erase(source) == 0;
  while (!bytes.empty()) {
    const auto line = bytes.substr(0, bytes.find('\n'));
    // Of "\r\n" the '\r' is no redrawing.
    const auto carriage =
        line.substr(0, line.size() - (line.size() < bytes.size() && !line.empty() ? 1 : 0)).find('\r');
    if (begins && carriage != 0) out += prefix;
    const auto length = carriage != std::string_view::npos ? carriage + 1 : std::min(line.size() + 1, bytes.size());
    out += bytes.substr(0, length);
    begins = bytes[length - 1] == '\n' || bytes[length - 1] == '\r';
    bytes.remove_prefix(length);
  }
  if (!begins) in_pieces_.insert(source);
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
