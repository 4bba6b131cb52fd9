// Shows the report of a job once: each host's ddprun prints the same report on its stderr.
//
// Pure: bytes in, bytes out. Errors of one host, such as a program that is missing there, stay as they are.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::launcher {

class RepeatedReports {
 public:
  // Takes in what a host's ddprun wrote to stderr, and returns what is to be shown now. Holds back only lines that
  // may belong to a report. Workers' lines must have a prefix, or their lines could be held back too.
  std::string feed(std::size_t host, std::string_view bytes);
  // The host's stderr has ended: returns what was held back.
  std::string end(std::size_t host);

 private:
  struct Held {
    std::string lines;        // whole lines of what may be a report
    std::string line;         // the beginning of a line
    std::size_t count = 0;    // of whole lines
    bool is_in_line = false;  // the rest of this line is passed on
  };
  void take_whole_line(Held& held, std::string& out);
  static void release(Held& held, std::string& out);

  std::map<std::size_t, Held> held_;
  std::vector<std::string> shown_;
};

}  // namespace ddp::launcher
