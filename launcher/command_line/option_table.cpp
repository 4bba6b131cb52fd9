#include "launcher/command_line/option_table.hpp"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <sstream>

namespace ddp::launcher {
namespace {

// Levenshtein distance; words are short.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t above = row[j + 1];
      row[j + 1] = std::min({above + 1, row[j] + 1, diagonal + (a[i] == b[j] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

std::string with_dashes(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

std::string environment_name(std::string_view prefix, std::string_view option) {
  std::string out(prefix);
  for (const char c : option)
    out += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

[[noreturn]] void throw_unknown(const std::string& word, const std::string& name) {
  const Option* nearest = nullptr;
  std::size_t best = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const auto& option : option_table()) {
    const auto distance = edit_distance(name, option.name);
    if (distance < best) {
      best = distance;
      nearest = &option;
    }
  }
  throw UsageError("unknown option " + word, "ddprun's command line, before the program",
                   nearest != nullptr ? "`--" + std::string(nearest->name) + "`; `ddprun --help` lists all"
                                      : "`ddprun --help`; options of the program go behind its name");
}

// An exact name, or a prefix that only one name has.
const Option& find_long(const std::string& word, const std::string& name) {
  std::vector<const Option*> candidates;
  for (const auto& option : option_table()) {
    if (option.name == name) return option;
    if (option.name.substr(0, name.size()) == name) candidates.push_back(&option);
  }
  if (candidates.empty()) throw_unknown(word, name);
  if (candidates.size() == 1) return *candidates.front();
  std::string names;
  for (const auto* option : candidates) names += (names.empty() ? "--" : ", --") + std::string(option->name);
  throw UsageError("option " + word + " is ambiguous", "ddprun's command line, before the program", "one of " + names);
}

// On/off options of the environment hold an integer, zero is off. Source: torchrun's check_env action.
std::string flag_value(const std::string& where, const std::string& text) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos)
    throw UsageError("an on/off setting must be 0 or 1, not '" + text + "'", where, "set it to 0 or 1, or unset it");
  return text.find_first_not_of('0') == std::string::npos ? "0" : "1";
}

void resolve_environment(const EnvironmentLookup& environment, ResolvedLine& line) {
  for (const auto& option : option_table()) {
    if (option.name == "help" || option.name == "version") continue;
    for (const auto* prefix : {"PET_", "DDPRUN_"}) {  // the second one wins
      const auto name = environment_name(prefix, option.name);
      const auto text = environment(name);
      if (!text) continue;
      const auto where = "environment variable " + name + "=" + *text;
      line.options.push_back({&option, option.value_name.empty() ? flag_value(where, *text) : *text, where});
    }
  }
}

}  // namespace

const std::vector<Option>& option_table() {
  static const std::vector<Option> table{
      {"standalone", 0, "", "one node, with a rendezvous of its own on a free port; the default on a single node"},
      {"nnodes", 0, "N", "number of nodes; only 1 so far"},
      {"nproc-per-node", 0, "N|gpu|cpu|auto",
       "workers on this node: a number, one per GPU, one per CPU, or GPUs if there are any and else CPUs. Default: one "
       "per GPU, or 1 without GPUs"},
      {"max-restarts", 0, "N", "times that all workers are started again after a failure. Default: 0"},
      {"module", 'm', "", "the program is a Python module, run by `python -m`"},
      {"no-python", 0, "", "run the program itself even if its name ends in .py"},
      {"shutdown-timeout", 0, "SECONDS",
       "grace between a stop signal and SIGKILL, in every path. Default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30"},
      {"no-prefix", 0, "", "no rank before lines that more than one worker prints to a terminal"},
      {"store-allow", 0, "CIDR,..|any",
       "who may connect to the store besides this user's processes on this host"},
      {"help", 'h', "", "show this text"},
      {"version", 0, "", "show the version"},
  };
  return table;
}

ResolvedLine resolve(const std::vector<std::string>& arguments, const EnvironmentLookup& environment) {
  ResolvedLine line;
  resolve_environment(environment, line);
  std::size_t i = 0;
  for (; i < arguments.size(); ++i) {
    const auto& word = arguments[i];
    if (word == "--") {
      ++i;
      break;
    }
    if (word.size() < 2 || word[0] != '-') break;
    const Option* option = nullptr;
    std::optional<std::string> value;
    if (word[1] == '-') {
      const auto equals = word.find('=');
      option = &find_long(word, with_dashes(word.substr(2, equals == std::string::npos ? equals : equals - 2)));
      if (equals != std::string::npos) value = word.substr(equals + 1);
    } else {
      const auto found = std::find_if(option_table().begin(), option_table().end(),
                                      [&](const Option& o) { return o.letter == word[1]; });
      if (found == option_table().end() || word.size() > 2) throw_unknown(word, word.substr(1));
      option = &*found;
    }
    const auto shown = "--" + std::string(option->name);
    if (option->value_name.empty()) {
      if (value) throw UsageError(shown + " takes no value", "ddprun's command line: " + word, "`" + shown + "`");
      line.options.push_back({option, "1", word});
      continue;
    }
    auto where = word;
    if (!value) {
      if (i + 1 == arguments.size())
        throw UsageError(shown + " needs a value", "the end of ddprun's command line",
                         "`" + shown + "=" + std::string(option->value_name) + "`");
      value = arguments[++i];
      where += " " + *value;
    }
    line.options.push_back({option, *value, where});
  }
  line.program.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
  return line;
}

std::string help_text() {
  constexpr std::size_t kHelpColumn = 28, kWidth = 100;
  std::ostringstream out;
  out << "usage: ddprun [options] program [arguments]\n\n"
         "Starts data-parallel training on this machine and keeps it running. The program is a Python script (its name\n"
         "ends in .py, or -m is given) or anything executable; each copy finds its rank in its environment, as under\n"
         "torchrun. Options go before the program. Defaults may come from DDPRUN_<NAME> or PET_<NAME>.\n\noptions:\n";
  for (const auto& option : option_table()) {
    std::string left = "  ";
    if (option.letter != 0) left += std::string("-") + option.letter + ", ";
    left += "--" + std::string(option.name);
    if (!option.value_name.empty()) left += " " + std::string(option.value_name);
    out << left;
    std::size_t column = left.size();
    if (column + 2 > kHelpColumn) {
      out << '\n';
      column = 0;
    }
    out << std::string(kHelpColumn - column, ' ');
    column = kHelpColumn;
    std::istringstream words{std::string(option.help)};
    for (std::string word; words >> word;) {
      if (column + word.size() > kWidth) {
        out << '\n' << std::string(kHelpColumn, ' ');
        column = kHelpColumn;
      }
      out << word << ' ';
      column += word.size() + 1;
    }
    out << '\n';
  }
  out << "\nexit codes: 0 all workers ended with 0; the code of the worker that failed first; 128 + n for a signal n;\n"
         "2 wrong use; 126 and 127 the program can't be run or is not found\n";
  return out.str();
}

}  // namespace ddp::launcher
