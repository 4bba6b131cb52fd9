#include "launcher/command_line/given_options.hpp"

#include <algorithm>
#include <cctype>

#include "launcher/command_line/nearest_word.hpp"
#include "launcher/command_line/other_launchers.hpp"

namespace ddp::launcher {
namespace {

std::string with_dashes(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

std::string environment_name(std::string_view prefix, std::string_view option) {
  std::string out(prefix);
  for (const char c : option) out += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

bool shows_something(const Option& option) {
  return option.name == "help" || option.name == "version" || option.name == "print-man-page";
}

[[noreturn]] void throw_unknown(const std::string& word, const std::string& name) {
  if (const auto instead = instead_of(name))
    throw UsageError("unknown option " + word, "ddprun's command line, before the program", *instead);
  std::vector<std::string_view> names;
  for (const auto& option : option_table())
    if (option.group != OptionGroup::hidden) names.push_back(option.name);
  const auto nearest = nearest_word(name, names);
  throw UsageError("unknown option " + word, "ddprun's command line, before the program",
                   nearest.empty() ? "`ddprun --help`; options of the program go behind its name"
                                   : "`--" + std::string(nearest) + "`; `ddprun --help` lists all");
}

// An exact name, or a prefix that only one name has; where torchrun knows only one, that one.
const Option& find_long(const std::string& word, const std::string& name) {
  if (const auto* option = find_option(name)) return *option;
  std::vector<const Option*> candidates, of_torchrun;
  for (const auto& option : option_table()) {
    if (name.empty() || option.group == OptionGroup::hidden || option.name.substr(0, name.size()) != name) continue;
    candidates.push_back(&option);
    if (option.is_torchruns) of_torchrun.push_back(&option);
  }
  if (candidates.empty()) throw_unknown(word, name);
  if (candidates.size() == 1) return *candidates.front();
  if (of_torchrun.size() == 1) return *of_torchrun.front();
  if (instead_of(name)) throw_unknown(word, name);
  std::string names;
  for (const auto* option : candidates) names += (names.empty() ? "--" : ", --") + std::string(option->name);
  throw UsageError("option " + word + " is ambiguous", "ddprun's command line, before the program", "one of " + names);
}

const Option& find_short(const std::string& word, char letter) {
  const auto found = std::find_if(option_table().begin(), option_table().end(),
                                  [letter](const Option& option) { return letter != 0 && option.letter == letter; });
  if (found != option_table().end()) return *found;
  // -np is an option of its own where other launchers have it; -n4 and -Ha,b are one with its value; -nproc lacks a
  // dash.
  const auto name = with_dashes(word.substr(1, word.find('=') == std::string::npos ? word.npos : word.find('=') - 1));
  if (instead_of(name)) throw_unknown(word, name);
  const auto letters = name.substr(0, name.find_first_of("0123456789"));
  if (instead_of(letters)) throw_unknown(word, letters);
  const auto is_meant = [&name](const Option& option) {
    return name.size() > 2 && option.group != OptionGroup::hidden && option.name.substr(0, name.size()) == name;
  };
  const auto meant = std::find_if(option_table().begin(), option_table().end(), is_meant);
  if (meant != option_table().end()) throw_unknown(word, std::string(meant->name));
  const auto first = name.substr(0, 1);
  throw_unknown(word, first[0] == letter && instead_of(first) ? first : letters);
}

// On/off options of the environment hold an integer, zero is off. Source: torchrun's check_env action.
std::string flag_value(const std::string& where, const std::string& text) {
  const auto digits = text.substr(text.find_first_not_of('-') == 1 ? 1 : 0);
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos)
    throw UsageError("an on/off setting must be 0 or 1, not '" + text + "'", where, "set it to 0 or 1, or unset it");
  return digits.find_first_not_of('0') == std::string::npos ? "0" : "1";
}

void read_environment(const EnvironmentLookup& environment, GivenOptions& options) {
  using From = GivenOption::From;
  for (const auto& option : option_table()) {
    if (shows_something(option) || option.name == "print-completion") continue;
    for (const auto from : {From::torchrun_variable, From::ddprun_variable}) {  // the second one wins
      const bool is_torchruns = from == From::torchrun_variable;
      if (is_torchruns && !option.is_torchruns) continue;
      const auto name = environment_name(is_torchruns ? "PET_" : "DDPRUN_", option.name);
      const auto text = environment(name);
      if (!text) continue;
      auto where = "environment variable " + name + "=" + *text;
      auto value = option.value_name.empty() ? flag_value(where, *text) : *text;
      options.set({&option, std::move(value), std::move(where), from, name});
    }
  }
}

// A word that can only be the next option: its value was forgotten. Negative numbers are values, if wrong ones.
bool looks_like_an_option(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && std::isdigit(static_cast<unsigned char>(word[1])) == 0;
}

class Reader {
 public:
  Reader(const std::vector<std::string>& arguments, CommandLine& line) : arguments_(arguments), line_(line) {}

  void read() {
    while (next_ < arguments_.size() && !ended_) {
      const auto& word = arguments_[next_];
      if (word.size() < 2 || word[0] != '-') break;
      ++next_;
      if (word == "--") break;
      if (word[1] == '-')
        read_long(word);
      else
        read_letters(word);
    }
    line_.program.assign(arguments_.begin() + static_cast<std::ptrdiff_t>(next_), arguments_.end());
  }

 private:
  void read_long(const std::string& word) {
    const auto equals = word.find('=');
    const auto& option =
        find_long(word, with_dashes(word.substr(2, equals == std::string::npos ? equals : equals - 2)));
    if (equals == std::string::npos && !option.value_name.empty()) return take_next(option, word);
    if (equals == std::string::npos) return set_flag(option, word);
    if (option.value_name.empty()) refuse_value(option, word);
    line_.options.set_or_add({&option, word.substr(equals + 1), word});
  }

  void read_letters(const std::string& word) {
    for (std::size_t at = 1; at < word.size(); ++at) {
      const auto& option = find_short(word, word[at]);
      auto rest = word.substr(at + 1);
      if (option.value_name.empty()) {
        if (!rest.empty() && rest[0] == '=') refuse_value(option, word);
        set_flag(option, word);
        continue;
      }
      if (rest.empty()) return take_next(option, word);
      if (rest[0] == '=') rest.erase(0, 1);
      return line_.options.set_or_add({&option, rest, word});
    }
  }

  void set_flag(const Option& option, const std::string& word) {
    line_.options.set({&option, "1", word});
    ended_ = ended_ || shows_something(option);
  }

  void take_next(const Option& option, const std::string& word) {
    const auto shown = "--" + std::string(option.name);
    if (next_ == arguments_.size() || looks_like_an_option(arguments_[next_]))
      throw UsageError(shown + " needs a value",
                       next_ == arguments_.size() ? "the end of ddprun's command line"
                                                  : "ddprun's command line, before " + arguments_[next_],
                       "`" + shown + "=" + std::string(option.value_name) + "`");
    const auto& value = arguments_[next_++];
    line_.options.set_or_add({&option, value, word + " " + value});
  }

  [[noreturn]] static void refuse_value(const Option& option, const std::string& word) {
    const auto shown = "--" + std::string(option.name);
    throw UsageError(shown + " takes no value", "ddprun's command line: " + word, "`" + shown + "`");
  }

  const std::vector<std::string>& arguments_;
  CommandLine& line_;
  std::size_t next_ = 0;
  bool ended_ = false;
};

}  // namespace

const GivenOption* GivenOptions::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &found->second;
}

bool GivenOptions::is_on(std::string_view flag) const {
  const auto* given = find(flag);
  return given != nullptr && given->value == "1";
}

void GivenOptions::set(GivenOption given) { by_name_.insert_or_assign(given.option->name, std::move(given)); }

void GivenOptions::set_or_add(GivenOption given) {
  if (const auto* before = find(given.option->name); before != nullptr && given.option->is_list) {
    given.value = before->value + kListSeparator + given.value;
    given.where = before->where + " " + given.where;
  }
  set(std::move(given));
}

CommandLine read_options(const std::vector<std::string>& arguments, const EnvironmentLookup& environment) {
  CommandLine line;
  read_environment(environment, line.options);
  Reader(arguments, line).read();
  return line;
}

}  // namespace ddp::launcher
