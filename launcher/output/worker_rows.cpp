#include "launcher/output/worker_rows.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "launcher/output/whole_lines.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kRowsMax = 128;  // more than a terminal has
constexpr std::size_t kEscapeBytesMax = 32;

// How long the sequence at the beginning of `bytes` is; 0: its end is to come.
std::size_t length_of_escape(std::string_view bytes) {
  if (bytes.size() < 2) return 0;
  if (bytes[1] != '[') return 2;
  const auto end = bytes.find_first_not_of("0123456789;:?<=> ", 2);
  return end == std::string_view::npos ? 0 : end + 1;
}

// Of "\x1b[3A" 3; of "\x1b[A" 1.
std::size_t count_in(std::string_view sequence) {
  std::size_t count = 1;
  std::from_chars(sequence.data() + 2, sequence.data() + sequence.size() - 1, count);
  return std::clamp<std::size_t>(count, 1, kRowsMax);
}

}  // namespace

std::vector<std::string> WorkerRows::feed(std::string_view bytes, const std::string& prefix, std::string& raw) {
  const auto joined = escape_.empty() ? std::string() : std::exchange(escape_, {}) + std::string(bytes);
  if (!joined.empty()) bytes = joined;
  while (!bytes.empty()) {
    std::size_t length = 1;
    is_after_newline_ = bytes[0] == '\n';
    if (bytes[0] == '\n') {
      take_newline(raw);
    } else if (bytes[0] == '\r') {
      raw += '\r';
      auto& row = rows_[cursor_];
      if (bytes.substr(1, 1) != "\n") row.is_bar = row.is_over = true;
    } else if (bytes[0] == '\x1b') {
      length = length_of_escape(bytes);
      if (length == 0 && bytes.size() < kEscapeBytesMax) {
        escape_ = bytes;
        break;
      }
      length = length == 0 ? 1 : length;
      take_escape(bytes.substr(0, length), prefix, raw);
    } else {
      length = std::min(bytes.find_first_of("\n\r\x1b"), bytes.size());
      take_text(bytes.substr(0, length), prefix, raw);
    }
    bytes.remove_prefix(length);
  }
  return take_final();
}

void WorkerRows::take_text(std::string_view text, const std::string& prefix, std::string& raw) {
  auto& row = rows_[cursor_];
  if (std::exchange(row.is_over, false)) row.text.clear();
  if (row.text.empty()) raw += prefix;
  raw += text;
  row.text += text;
  if (row.text.size() > kLineBytesMax) row.text.erase(0, row.text.size() - kLineBytesMax / 2);
}

void WorkerRows::take_escape(std::string_view sequence, const std::string& prefix, std::string& raw) {
  if (sequence.back() == 'm') return take_text(sequence, prefix, raw);
  raw += sequence;
  if (sequence.size() < 3) return;
  auto& row = rows_[cursor_];
  if (sequence.back() == 'A') {
    const auto count = std::min(count_in(sequence), cursor_);
    cursor_ -= count;
    reach_ = std::max(reach_, count);
  } else if (sequence.back() == 'B') {
    move_down(count_in(sequence));
  } else if (sequence.back() == 'K' && (row.is_over || sequence[2] == '2')) {
    row.text.clear();
    row.is_bar = true;
  }
}

void WorkerRows::move_down(std::size_t rows) {
  cursor_ += rows;
  while (rows_.size() <= cursor_) rows_.emplace_back();
}

void WorkerRows::take_newline(std::string& raw) {
  const auto& row = rows_[cursor_];
  const bool is_line = !row.is_bar && !row.is_empty();
  if (row.is_empty() && std::exchange(was_forgotten_, false)) {  // the line is printed already
    rows_[cursor_] = {};
    return;
  }
  was_forgotten_ = false;
  raw += '\n';
  move_down(1);
  if (is_line) final_ = cursor_;
}

std::vector<std::string> WorkerRows::take_final() {
  auto count = std::max(final_, cursor_ > reach_ ? cursor_ - reach_ : 0);
  // Empty rows above the cursor: it may have come to draw below them, and go up again.
  while (count > 0 && rows_[count - 1].is_empty()) --count;
  if (rows_.size() > kRowsMax) count = std::max(count, std::min(rows_.size() - kRowsMax, cursor_));
  std::vector<std::string> out;
  for (std::size_t i = 0; i < count; ++i) {
    out.push_back(std::move(rows_.front().text));
    rows_.pop_front();
  }
  cursor_ -= count;
  final_ = 0;
  return out;
}

std::vector<std::string> WorkerRows::end() {
  if (is_after_newline_) rows_.resize(cursor_);
  std::vector<std::string> out;
  for (auto& row : rows_)
    if (!row.is_empty()) out.push_back(std::move(row.text));
  *this = WorkerRows();
  return out;
}

std::vector<const WorkerRows::Row*> WorkerRows::bars() const {
  std::vector<const Row*> out;
  for (const auto& row : rows_)
    if (!row.is_empty() && (row.is_bar || reach_ > 0)) out.push_back(&row);
  return out;
}

std::string_view WorkerRows::partial() const {
  const auto& row = rows_[cursor_];
  return row.is_bar || reach_ > 0 ? std::string_view() : std::string_view(row.text);
}

std::size_t WorkerRows::height() const {
  auto count = rows_.size();
  while (count > 0 && rows_[count - 1].is_empty()) --count;
  return count;
}

void WorkerRows::forget_partial() {
  rows_[cursor_] = {};
  was_forgotten_ = true;
}

}  // namespace ddp::launcher
