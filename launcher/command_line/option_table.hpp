// ddprun's options, in one table: names, values, defaults from the environment and the text of --help.
//
// Pure. The table alone decides where ddprun's own options end and the program begins, because a library parser takes
// the value of an unknown option for the program (CLI11 2.1 reads `--bogus 3 train.py` as the program `3`).
//
// Spelling rules, as torchrun's argparse has them: `--opt value` and `--opt=value`; dashes and underscores are equal;
// any unambiguous prefix of a long name will do; the first word that is no option is the program, and everything behind
// it belongs to the program, untouched. `--` ends the options, too.
#pragma once

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::launcher {

// Wrong use of ddprun: one error in three parts, exit code 2.
class UsageError : public std::runtime_error {
 public:
  UsageError(const std::string& what_happened, std::string where, std::string try_this)
      : std::runtime_error(what_happened), where_(std::move(where)), try_(std::move(try_this)) {}
  const std::string& where() const { return where_; }
  const std::string& try_this() const { return try_; }

 private:
  std::string where_, try_;
};

struct Option {
  std::string_view name;        // long name with dashes, without the leading two
  char letter;                  // short form, or 0
  std::string_view value_name;  // shown in --help; empty for a flag
  std::string_view help;
};

// In the order of --help.
const std::vector<Option>& option_table();

// One option as it was given.
struct GivenOption {
  const Option* option;
  std::string value;  // of a flag: "1" or "0"
  std::string where;  // "--nproc_per_node=4" or "environment variable PET_NPROC_PER_NODE=4", for messages
};

struct ResolvedLine {
  std::vector<GivenOption> options;  // environment first, then the command line, so the last one wins
  std::vector<std::string> program;  // the program and its arguments
};

using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;

// `arguments` without ddprun's own name. Defaults come from DDPRUN_<NAME>, then PET_<NAME>, names with underscores and in
// capitals. Throws UsageError.
ResolvedLine resolve(const std::vector<std::string>& arguments, const EnvironmentLookup& environment);

std::string help_text();

}  // namespace ddp::launcher
