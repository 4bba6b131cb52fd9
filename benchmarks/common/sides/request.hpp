// What a benchmark asks of the ranks of a side, as a line of text, so that a side can be a program in any language.
//
//   measure WHAT MEMORY BYTES BATCHES CALLS FRESH MEET CHECK     answered by `ok NS NS ..`, a figure for each batch
//   release                                                      answered by `ok`
// or by `failed WHY`.
#pragma once

#include <cstddef>
#include <sstream>
#include <string>

namespace ddp::benchmarks {

struct Request {
  std::string what;              // "all_reduce", "barrier", ..: whatever the side knows
  std::string memory = "plain";  // or "registered"
  std::size_t bytes = 0;         // of the larger buffer of a call
  int batches = 1;
  int calls = 1;       // back to back in each batch; a figure is the time of one call
  bool fresh = false;  // every rank writes its whole buffer before each batch
  bool meet = true;    // the ranks meet before each batch, outside the timed part
  bool check = false;  // whether the result of the first batch is right; needs `fresh`, and one call in a batch
};

inline std::string line_of(const Request& request) {
  std::ostringstream out;
  out << "measure " << request.what << ' ' << request.memory << ' ' << request.bytes << ' ' << request.batches << ' '
      << request.calls << ' ' << request.fresh << ' ' << request.meet << ' ' << request.check << '\n';
  return out.str();
}

inline Request request_of(const std::string& line) {
  Request out;
  std::string verb;
  std::istringstream(line) >> verb >> out.what >> out.memory >> out.bytes >> out.batches >> out.calls >> out.fresh >>
      out.meet >> out.check;
  return out;
}

inline bool same_buffers(const Request& a, const Request& b) {
  return a.what == b.what && a.memory == b.memory && a.bytes == b.bytes;
}

}  // namespace ddp::benchmarks
