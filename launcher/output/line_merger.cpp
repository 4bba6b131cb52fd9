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

// Cut where it would wrap, without its colours then.
std::string fitted(std::string text, std::size_t columns) {
  if (columns == 0 || columns_of(text) <= columns) return text;
  std::string out;
  std::size_t used = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text.compare(at, 2, "\x1b[") == 0) {
      at = std::min(text.size(), text.find_first_not_of("0123456789;?", at + 2));
      continue;
    }
    if ((text[at] & 0xc0) != 0x80 && ++used > columns) break;
    out += text[at];
  }
  return out;
}

// The cursor, by rows: 'A' up, 'B' down.
std::string move(std::size_t rows, char direction) {
  return rows == 0 ? "" : "\x1b[" + std::to_string(rows) + direction;
}

// Leaves the first of some rows, one of which the cursor is in. Row by row: tmux keeps what is wiped at once in its
// history.
std::string wiped(std::size_t rows, std::size_t cursor) {
  auto out = move(rows - 1 - cursor, 'B');
  out += kWipeLine;
  for (std::size_t i = 1; i < rows; ++i) out += "\x1b[1A\x1b[K";
  return out;
}

}  // namespace

std::string LineMerger::prefix_of(Source source) const {
  return options_.prefix && source.rank != kAgentSource ? options_.prefix(source, ranks_.size() > 1) : std::string();
}

std::string LineMerger::feed(Source source, std::string_view bytes) {
  std::string out;
  if (bytes.empty()) return out;
  if (source.rank != kAgentSource) ranks_.insert(source.rank);
  if (options_.terminal) return feed_terminal(source, bytes);
  feed_whole_lines(source, bytes, out);
  if (out.empty()) return out;
  if (mid_line_ && source.rank == kAgentSource) out.insert(0, "\n");  // ddprun's own lines begin at a line's beginning
  mid_line_ = out.back() != '\n';
  return out;
}

std::string LineMerger::end(Source source) {
  if (options_.terminal) return end_on_terminal(source);
  std::string out;
  const auto found = unfinished_.find(source);
  if (found == unfinished_.end()) return out;
  if (!found->second.empty()) {
    pass_on(source, found->second, out);
    in_pieces_.erase(source);
    if (ranks_.size() > 1 && out.back() != '\r') out += '\n';
    mid_line_ = out.back() != '\n';
  } else if (in_pieces_.erase(source) != 0 && mid_line_ && ranks_.size() > 1) {
    out += '\n';
    mid_line_ = false;
  }
  unfinished_.erase(source);
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

std::string LineMerger::feed_terminal(Source source, std::string_view bytes) {
  auto& rows = rows_[source];
  std::string raw;
  if (is_free() || raw_of_ == source) {
    static_cast<void>(rows.feed(bytes, prefix_of(source), raw));
    if (rows.height() == 0 && rows.cursor() == 0) {
      raw_of_.reset();
      show_rest(raw);
    } else {
      raw_of_ = source;
    }
    return raw;
  }
  return print_above(source, rows.feed(bytes, prefix_of(source), raw));
}

std::string LineMerger::end_on_terminal(Source source) {
  const auto found = rows_.find(source);
  if (found == rows_.end()) return {};
  const auto cursor = found->second.cursor(), height = found->second.height();
  const auto lines = found->second.end();
  rows_.erase(found);
  if (raw_of_ != source) return print_above(source, lines);
  raw_of_.reset();
  std::string out;
  if (height > cursor) out += move(height - 1 - cursor, 'B') + '\n';  // the shell's prompt belongs on a line of its own
  show_rest(out);
  return out;
}

// Prints whole lines where something of others stands, and shows what of this source has changed.
std::string LineMerger::print_above(Source source, const std::vector<std::string>& lines) {
  std::string out;
  const bool stands_partial = raw_of_ && !rows_.at(*raw_of_).partial().empty();
  if (stands_partial && lines.empty())
    return out;  // it may be a prompt, with an answer behind it that is not known here
  if (stands_partial) {
    out += '\n';  // it is printed, and stays
    rows_.at(*std::exchange(raw_of_, std::nullopt)).forget_partial();
  } else if (lines.empty() && !raw_of_) {
    return redraw_changed();
  } else if (lines.empty() && (rows_.count(source) == 0 || rows_.at(source).bars().empty())) {
    return out;
  } else {
    wipe(out);
  }
  for (const auto& line : lines) out += (line.empty() ? "" : prefix_of(source) + line) + '\n';
  show_rest(out);
  return out;
}

void LineMerger::wipe(std::string& out) {
  if (const auto of = std::exchange(raw_of_, std::nullopt)) {
    const auto& rows = rows_.at(*of);
    const auto& row = rows.rows().front();
    if (rows.rows().size() > 1)
      out += wiped(rows.rows().size(), rows.cursor());
    else
      out += columns_ > 0 && columns_of(prefix_of(*of) + row.text) > columns_ ? "\n" : kWipeLine;
  } else if (!shown_.empty()) {
    out += wiped(shown_.size(), shown_.size() - 1);
  }
  shown_.clear();
}

std::vector<std::string> LineMerger::all_bars() const {
  std::vector<std::string> out;
  for (const auto& [source, rows] : rows_)
    for (const auto* bar : rows.bars()) {
      if (terminal_rows_ > 1 && out.size() == terminal_rows_ - 1) return out;
      out.push_back(fitted(prefix_of(source) + bar->text, columns_));
    }
  return out;
}

// Below the last line: all bars or, where there is none, an unfinished line. Requires that nothing is shown.
void LineMerger::show_rest(std::string& out) {
  const WorkerRows::Row* only = nullptr;
  std::optional<Source> only_of;
  std::size_t count = 0;
  for (const auto& [source, rows] : rows_)
    for (const auto* bar : rows.bars()) {
      ++count;
      only = bar;
      only_of = source;
    }
  if (count == 1 && rows_.at(*only_of).rows().size() == 1) {
    out += prefix_of(*only_of) + only->text + (only->is_over ? "\r" : "");
    raw_of_ = only_of;
    return;
  }
  if (count > 0) {
    shown_ = all_bars();
    for (const auto& row : shown_) out += (&row == shown_.data() ? "" : "\n") + row;
    return;
  }
  for (const auto& [source, rows] : rows_)
    if (!rows.partial().empty()) {
      out += prefix_of(source);
      out += rows.partial();
      raw_of_ = source;
      return;
    }
}

std::string LineMerger::redraw_changed() {
  std::string out;
  auto bars = all_bars();
  if (bars.size() != shown_.size() || bars.size() < 2) {
    wipe(out);
    show_rest(out);
    return out;
  }
  for (std::size_t i = 0; i < bars.size(); ++i) {
    if (bars[i] == shown_[i]) continue;
    const auto up = bars.size() - 1 - i;
    out += move(up, 'A');
    out += kWipeLine;
    out += bars[i] + move(up, 'B');
  }
  shown_ = std::move(bars);
  return out;
}

}  // namespace ddp::launcher
