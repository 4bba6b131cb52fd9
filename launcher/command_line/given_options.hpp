// Takes a command line apart: which options were given, how, and where the program begins.
//
// Pure. The table alone decides where ddprun's own options end, because a library parser takes the value of an unknown
// option for the program (CLI11 2.1 reads `--bogus 3 train.py` as the program `3`).
//
// Spelling rules, as torchrun's argparse has them: `--opt value` and `--opt=value`; dashes and underscores are equal;
// any unambiguous prefix of a long name will do; short options are joined with their value and with each other (`-r3`,
// `-mr3`); the last one of a name counts; the first word that is no option is the program, and everything behind it
// belongs to the program, untouched. `--` ends the options, too.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/command_line/option_table.hpp"

namespace ddp::launcher {

struct GivenOption {
  enum class From { command_line, ddprun_variable, torchrun_variable, slurm };

  const Option* option;
  std::string value;  // of a flag: "1" or "0"
  std::string where;  // "--nproc_per_node=4" or "environment variable PET_NPROC_PER_NODE=4", for messages
  From from = From::command_line;
  std::string variable{};  // "PET_NPROC_PER_NODE", of a ddprun_variable or torchrun_variable

  bool is_from_variable() const { return from == From::ddprun_variable || from == From::torchrun_variable; }
};

class GivenOptions {
 public:
  const GivenOption* find(std::string_view name) const;  // null where it was not given
  bool is_on(std::string_view flag) const;
  void set(GivenOption given);         // takes the place of an earlier one of this name
  void set_or_add(GivenOption given);  // the values of a list add up

 private:
  std::map<std::string_view, GivenOption> by_name_;
};

struct CommandLine {
  GivenOptions options;
  std::vector<std::string> program;  // the program and its arguments
};

using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;

// `arguments` without ddprun's own name. Defaults come from DDPRUN_<NAME>, then, for options that torchrun has too,
// from PET_<NAME>, names with underscores and in capitals. What only shows something (--help) ends the line. Throws
// UsageError.
CommandLine read_options(const std::vector<std::string>& arguments, const EnvironmentLookup& environment);

}  // namespace ddp::launcher
