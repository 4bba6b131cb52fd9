#include "launcher/output/line_merger.hpp"

#include <algorithm>
#include <utility>

#include "launcher/output/whole_lines.hpp"

namespace ddp::launcher {
namespace {

constexpr std::string_view kWipeLine = "\r\x1b[K";

// The columns of a terminal that a line takes whose characters take one each: not its bytes, of which a block of a
// progress bar has three, and no colours.
std::size_t columns_of(std::string_view line) {
  std::size_t columns = 0;
  for (std::size_t at = 0; at < line.size(); ++at) {
    if (line.substr(at, 2) == "\x1b[")
      at = std::min(line.size(), line.find_first_not_of("0123456789;?", at + 2));
    else if ((line[at] & 0xc0) != 0x80 && line[at] != '\r')
      ++columns;
  }
  return columns;
}

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
  } else if (in_pieces_.erase(source) != 0 && mid_line_ && ranks_.size() > 1) {
    out += '\n';
    mid_line_ = false;
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
  while (!text.empty()) {
    const auto length = std::min(text.find('\r'), text.size());
    if (length > 0 && text[0] != '\n') {
      if (!line.empty() && line.back() == '\r') line.clear();  // what stands there is drawn over
      if (line.empty()) out += prefix;
    }
    line += text.substr(0, length);
    if (length < text.size() && !line.empty() && line.back() != '\r') line += '\r';
    out += text.substr(0, length + 1);
    text.remove_prefix(std::min(length + 1, text.size()));
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
    const auto standing = in_the_way ? prefix_of(*shown_) + unfinished_[*shown_] : std::string();
    if (in_the_way) out += columns_ > 0 && columns_of(standing) > columns_ ? "\n" : kWipeLine;
    if (!shown_ || in_the_way) {  // what was kept back of this source comes first
      const auto kept_back = std::exchange(unfinished_[source], {});
      draw(source, kept_back, out);
    }
    draw(source, text, out);
    if (complete) unfinished_[source].clear();
    out += standing;
    if (!in_the_way) shown_ = unfinished_[source].empty() ? std::nullopt : std::optional(source);
  }
}

}  // namespace ddp::launcher
