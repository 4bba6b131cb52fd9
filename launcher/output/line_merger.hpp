// Joins the output of many workers into one stream that a person can read: lines of different workers never mix.
//
// Pure: bytes in, bytes out.
//
// To a file or pipe go whole lines only (up to 64 KiB; what is longer is passed on in pieces); a carriage return ends a
// line too and stays where it is, so a progress bar arrives as the worker drew it. A prefix stands wherever a line or a
// redrawing begins.
//
// To a terminal goes what one worker writes as it is, as long as nothing of another one stands there. Progress bars of
// several workers stand below each other, in the order of ranks, under all lines: whatever rows the workers move to, a
// bar has one row. When a line comes, bars are wiped, the line is printed, and they are drawn again. An unfinished line
// that is no bar may be a prompt: it is printed once. While it is the last one, bars of others wait; a line of another
// worker comes below it.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/output/worker_rows.hpp"

namespace ddp::launcher {

constexpr int kAgentSource = -1;  // ddprun's own lines; they have no prefix and count as no worker

class LineMerger {
 public:
  // One stream of one worker.
  struct Source {
    int rank = 0;    // on this node
    int stream = 1;  // 1 stdout, 2 stderr
    friend bool operator<(const Source& a, const Source& b) {
      return a.rank != b.rank ? a.rank < b.rank : a.stream < b.stream;
    }
    friend bool operator==(const Source& a, const Source& b) { return a.rank == b.rank && a.stream == b.stream; }
  };

  // What stands before this worker's lines. `several`: a second worker has printed already.
  using Prefix = std::function<std::string(Source source, bool several)>;

  struct Options {
    bool terminal = false;
    Prefix prefix;  // or null
  };

  explicit LineMerger(Options options) : options_(std::move(options)) {}

  // Takes in bytes of one source, returns what is to be written.
  std::string feed(Source source, std::string_view bytes);

  // The source has ended: returns its unfinished line, if any.
  std::string end(Source source);

  // Of the terminal, in characters; 0 if unknown.
  void set_size(std::size_t columns, std::size_t rows) {
    columns_ = columns;
    terminal_rows_ = rows;
  }

 private:
  void feed_whole_lines(Source source, std::string_view bytes, std::string& out);
  void pass_on(Source source, std::string_view bytes, std::string& out);
  std::string feed_terminal(Source source, std::string_view bytes);
  std::string end_on_terminal(Source source);
  std::string print_above(Source source, const std::vector<std::string>& lines);
  bool is_free() const { return !raw_of_ && shown_.empty(); }  // the cursor is at the beginning of an empty row
  void wipe(std::string& out);
  std::vector<std::string> all_bars() const;
  void show_rest(std::string& out);
  std::string redraw_changed();
  std::string prefix_of(Source source) const;

  Options options_;
  std::map<Source, std::string> unfinished_;  // not on a terminal: the line so far
  std::set<Source> in_pieces_;                // not on a terminal: whose line has been passed on up to its middle
  std::set<int> ranks_;                       // that have printed
  bool mid_line_ = false;                     // not on a terminal: whether what was passed on last ended in no newline
  std::map<Source, WorkerRows> rows_;         // on a terminal
  std::optional<Source> raw_of_;              // whose rows the last ones of the terminal are, as it drew them
  std::vector<std::string> shown_;            // else these rows are the last ones, the cursor in the last of them
  std::size_t columns_ = 0, terminal_rows_ = 0;
};

}  // namespace ddp::launcher
