// The command line of ddp-bench. Pure: words in, a decision out.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "bench/settings.hpp"
#include "ddp/error.hpp"

namespace ddp::bench {

// Text to print, and no more: --help, --version.
struct ShowText {
  std::string text;
};

// Measures with each number of ranks.
struct Measure {
  Settings settings{};
  std::vector<int> ranks{};   // rising, from 1 on
  std::string json_file{};    // empty: none
  std::string svg_file{};     // empty: none
  std::string single_file{};  // for the samples per second of one rank; empty: none
};

// One rank, which ddp-bench starts by ddprun.
struct RunRank {
  Settings settings{};
};

// Wrong use, with one line of what was wrong.
class UsageError : public Error {
 public:
  using Error::Error;
};

// core_count: of this machine, for the default numbers of ranks. Throws UsageError.
std::variant<ShowText, Measure, RunRank> parse_command_line(const std::vector<std::string>& arguments, int core_count,
                                                            const std::string& version);

// The arguments that make ddp-bench a rank.
std::vector<std::string> rank_arguments(const Settings& settings);

}  // namespace ddp::bench
