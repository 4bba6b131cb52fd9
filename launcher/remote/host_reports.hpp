// The reports of the hosts' ddpruns on how the job has ended. Equal reports are shown once, for the first host.
//
// Pure.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::launcher {

class HostReports {
 public:
  struct Report {
    std::size_t host = 0;  // the first one that sent it
    std::string text;
  };

  // Takes in the report of a host. A host has one; of a longer one than kReportBytesMax (report_pipe.hpp) the rest is
  // left out.
  void add(std::size_t host, std::string_view text);

  // The different ones that were not taken yet, in the order in which they came.
  std::vector<Report> take_new();
  bool has_new() const { return taken_ < reports_.size(); }

 private:
  std::set<std::size_t> hosts_;  // that have sent one
  std::vector<Report> reports_;  // all that differ
  std::size_t taken_ = 0;
};

}  // namespace ddp::launcher
