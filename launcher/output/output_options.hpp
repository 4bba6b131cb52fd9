// What becomes of what workers print: --log-dir, --redirects, --tee, the prefix and the filters.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace ddp::launcher {

// Which streams of which worker, as torchrun's --redirects and --tee say it: 1 stdout, 2 stderr, 3 both.
struct StreamMask {
  int all = 0;  // of ranks that are not named
  std::map<int, int> by_local_rank;

  bool has(int local_rank, int stream) const {
    const auto found = by_local_rank.find(local_rank);
    return ((found != by_local_rank.end() ? found->second : all) & stream) != 0;
  }
  bool is_empty() const { return all == 0 && by_local_rank.empty(); }
};

struct RankRange {
  int first = 0, last = 0;  // both included
};

struct OutputOptions {
  std::string log_directory;  // --log-dir; empty: none was given; "/dev/null": no files at all, not even error files
  StreamMask redirects;       // to a file only
  StreamMask tee;             // to a file and to the console; goes before `redirects`
  std::vector<RankRange> local_ranks_shown;    // on the console; empty: all
  std::vector<RankRange> ranks_shown;          // the same by global rank; both must hold
  std::vector<std::string> stdout_duplicates;  // lines that contain one of these also go to one merged file
  std::vector<std::string> stderr_duplicates;
  std::string prefix_template;     // --log-line-prefix-template; empty: the short or the tee'd form (line_prefix.hpp)
  bool is_quiet = false;           // only the workers' lines are shown, and errors
  bool prefix_lines = true;        // --no-prefix makes it false
  bool merge_equal_lines = false;  // equal lines of many ranks become one on the console
};

}  // namespace ddp::launcher
