// The rows of a terminal that one stream of one worker draws on, as far as they may still change: an unfinished line,
// progress bars, the rows below the cursor to which a program moves down and from which it moves up again (tqdm with
// `position`).
//
// Pure.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::launcher {

class WorkerRows {
 public:
  struct Row {
    std::string text{};    // its last drawing, colours included
    bool is_bar = false;   // it is drawn again from its beginning
    bool is_over = false;  // what comes next is
    bool is_empty() const { return text.find_first_not_of(' ') == std::string::npos; }
  };

  // Returns the lines that are final now. `raw` gets the bytes as the terminal is to get them if nobody else draws
  // there, with prefix() wherever a line or a drawing begins.
  std::vector<std::string> feed(std::string_view bytes, const std::string& prefix, std::string& raw);

  // All rows that may still change, as final lines; empty ones are none, nor is what is left below a last newline: at a
  // terminal, others would write over it.
  std::vector<std::string> end();

  const std::deque<Row>& rows() const { return rows_; }
  std::size_t cursor() const { return cursor_; }  // the row that it is in

  std::vector<const Row*> bars() const;  // from the top
  // The unfinished line, where that is no bar; else empty.
  std::string_view partial() const;
  std::size_t height() const;  // from the top to the last row that is not empty

  // The unfinished line was printed and will not be repeated: what comes begins a new line.
  void forget_partial();

 private:
  void take_text(std::string_view text, const std::string& prefix, std::string& raw);
  void take_escape(std::string_view sequence, const std::string& prefix, std::string& raw);
  void move_down(std::size_t rows);
  void take_newline(std::string& raw);
  std::vector<std::string> take_final();

  std::deque<Row> rows_{1};
  std::size_t cursor_ = 0;
  std::size_t final_ = 0;          // rows from the top that can't change: a whole line that is no bar scrolls them up
  std::size_t reach_ = 0;          // how far up it has moved at once
  bool is_after_newline_ = false;  // nothing was written since
  std::string escape_;             // the beginning of a sequence whose end is to come
  bool was_forgotten_ = false;     // of the line that the cursor is in a part was printed
};

}  // namespace ddp::launcher
