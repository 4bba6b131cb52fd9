// Joins the output of many workers into one stream that a person can read: lines of different workers never mix.
//
// Pure: bytes in, bytes out.
//
// To a file or pipe go whole lines only (up to 64 KiB; what is longer is passed on in pieces); a carriage return ends a
// line too and stays where it is, so a progress bar arrives as the worker drew it. To a terminal an unfinished line of
// one worker (a progress bar, a prompt) shows at once; when another worker completes a line, the unfinished one is
// wiped, the line printed, and the unfinished one drawn again below. A prefix stands wherever a line or a redrawing
// begins.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

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

  // The width of the terminal in characters; 0 if unknown.
  void set_columns(std::size_t columns) { columns_ = columns; }

 private:
  void feed_whole_lines(Source source, std::string_view bytes, std::string& out);
  void pass_on(Source source, std::string_view bytes, std::string& out);
  void feed_terminal(Source source, std::string_view bytes, std::string& out);
  void draw(Source source, std::string_view text, std::string& out);
  std::string prefix_of(Source source) const;

  Options options_;
  std::map<Source, std::string> unfinished_;  // per source: the line so far; on a terminal, its last drawing
  std::set<Source> in_pieces_;                // not on a terminal: whose line has been passed on up to its middle
  std::set<int> ranks_;                       // that have printed
  bool mid_line_ = false;                     // not on a terminal: whether what was passed on last ended in no newline
  std::optional<Source> shown_;               // whose unfinished line the terminal's cursor stands behind
  std::size_t columns_ = 0;
};

}  // namespace ddp::launcher
