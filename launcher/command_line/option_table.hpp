// ddprun's options in one table: names, values and help. The parser, --help, the man page, completion and the variables
// that give defaults are all made from it.
#pragma once

#include <string_view>
#include <vector>

#include "launcher/command_line/usage_error.hpp"

namespace ddp::launcher {

enum class OptionGroup { job, hosts, rendezvous, workers, logs, failures, binding, other, hidden };

struct Option {
  std::string_view name;        // long name with dashes, without the leading two
  char letter;                  // short form, or 0
  std::string_view value_name;  // empty for a flag; DIR: a folder; alternatives are parted by |, those in lower case
                                // are meant literally
  OptionGroup group;
  bool is_torchruns;  // torchrun has it too: PET_<NAME> gives its default, and its prefixes go before those of ours
  std::string_view help;
  bool is_list = false;  // given more than once, its values add up, parted by kListSeparator
};

constexpr char kListSeparator = '\0';  // an argument of a program holds none

// In the order of --help: each group in one piece.
const std::vector<Option>& option_table();
const Option* find_option(std::string_view name);  // nullptr if there is none

// "failures and signals", the heading in --help.
std::string_view title(OptionGroup group);

// The words that the option takes literally, by its value_name.
std::vector<std::string_view> literal_values(const Option& option);

}  // namespace ddp::launcher
