// What a person sees at a terminal.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace ddp::test {

// A terminal of endless size, as far as programs need it that draw bars.
class Screen {
 public:
  Screen& operator<<(const std::string& bytes) {
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      const char c = bytes[at];
      if (c == '\n') {
        go_down(1);
        column_ = 0;  // the terminal's driver does so
      } else if (c == '\r') {
        column_ = 0;
      } else if (c == '\x1b') {
        const auto end = bytes.find_first_not_of("0123456789", at + 2);
        const auto digits = bytes.substr(at + 2, end - at - 2);
        obey(bytes[end], digits.empty() ? 1 : std::stoul(digits));
        at = end;
      } else {
        auto& row = rows_[row_];
        row.resize(std::max(row.size(), column_ + 1), ' ');
        row[column_++] = c;
      }
    }
    return *this;
  }

  std::vector<std::string> rows() const {
    auto out = rows_;
    for (auto& row : out) row.erase(row.find_last_not_of(' ') + 1);
    while (!out.empty() && out.back().empty()) out.pop_back();
    return out;
  }

 private:
  void obey(char what, std::size_t count) {
    if (what == 'A') row_ -= std::min(count, row_);
    if (what == 'B') go_down(count);
    if (what == 'K' || what == 'J') rows_[row_].resize(std::min(rows_[row_].size(), column_));
    if (what == 'J') rows_.resize(row_ + 1);
  }
  void go_down(std::size_t count) {
    row_ += count;
    rows_.resize(std::max(rows_.size(), row_ + 1));
  }

  std::vector<std::string> rows_{1};
  std::size_t row_ = 0, column_ = 0;
};

}  // namespace ddp::test
