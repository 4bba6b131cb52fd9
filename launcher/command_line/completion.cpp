#include "launcher/command_line/completion.hpp"

#include <sstream>

#include "launcher/command_line/option_table.hpp"

namespace ddp::launcher {
namespace {

bool is_shown(const Option& option) { return option.group != OptionGroup::hidden; }

std::string joined(const std::vector<std::string_view>& words) {
  std::string out;
  for (const auto word : words) out += (out.empty() ? "" : " ") + std::string(word);
  return out;
}

// "--redirects|-r"
std::string spellings(const Option& option) {
  const auto name = "--" + std::string(option.name);
  return option.letter == 0 ? name : name + "|-" + option.letter;
}

// `help` inside a single-quoted word of zsh or fish, less what zsh's _arguments would take for its own.
std::string quoted(std::string_view help) {
  std::string out;
  for (const char c : help)
    if (c == '\'')
      out += "'\\''";
    else if (c != '[' && c != ']' && c != '\\')
      out += c;
  return out;
}

// COMP_WORDS has `--opt=value` as three words, because `=` breaks words in bash.
std::string bash_script() {
  std::ostringstream out;
  std::string names, with_value;
  for (const auto& option : option_table()) {
    if (!is_shown(option)) continue;
    names += (names.empty() ? "--" : " --") + std::string(option.name);
    if (!option.value_name.empty()) with_value += (with_value.empty() ? "" : "|") + spellings(option);
  }
  out << "# Completion of ddprun for bash: source <(ddprun --print-completion bash)\n"
         "_ddprun() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} option='' word i\n"
         "  COMPREPLY=()\n"
         "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
         "    word=${COMP_WORDS[i]//_/-}\n"
         "    case $word in\n"
         "      =) ;;\n"
         "      "
      << with_value
      << ") option=$word; [[ ${COMP_WORDS[i + 1]} == = ]] && ((i++)); ((i++))\n"
         "        ((i < COMP_CWORD)) && option='' ;;\n"
         "      -*) ;;\n"
         "      *) COMPREPLY=($(compgen -f -- \"$current\")); compopt -o filenames 2>/dev/null; return ;;\n"
         "    esac\n"
         "  done\n"
         "  [[ $current == = ]] && current=''\n"
         "  case $option in\n"
         "    '') ;;\n";
  for (const auto& option : option_table()) {
    const auto words = literal_values(option);
    if (!is_shown(option) || (words.empty() && option.value_name != "DIR")) continue;
    out << "    " << spellings(option) << ") COMPREPLY=($(compgen "
        << (words.empty() ? "-d" : "-W '" + joined(words) + "'") << " -- \"$current\")); "
        << (words.empty() ? "compopt -o filenames 2>/dev/null; " : "") << "return ;;\n";
  }
  out << "    *) return ;;\n"
         "  esac\n"
         "  if [[ $current == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W '"
      << names
      << "' -- \"$current\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -c -- \"$current\") $(compgen -f -- \"$current\"))\n"
         "    compopt -o filenames 2>/dev/null\n"
         "  fi\n"
         "}\n"
         "complete -F _ddprun ddprun\n";
  return out.str();
}

std::string zsh_script() {
  std::ostringstream out;
  out << "#compdef ddprun\n"
         "# Completion of ddprun for zsh: source <(ddprun --print-completion zsh), or this text as _ddprun on $fpath\n"
         "_ddprun() {\n"
         "  _arguments -s -S \\\n";
  for (const auto& option : option_table()) {
    if (!is_shown(option)) continue;
    const auto help = quoted(option.help);
    std::string value;
    if (const auto words = literal_values(option); option.value_name == "DIR")
      value = ":folder:_files -/";
    else if (!words.empty())
      value = ":value:(" + joined(words) + ")";
    else if (!option.value_name.empty())
      value = ":value: ";
    if (option.letter != 0)
      out << "    '-" << option.letter << (value.empty() ? "" : "+") << '[' << help << "]" << value << "' \\\n";
    out << "    '--" << option.name << (value.empty() ? "" : "=") << '[' << help << "]" << value << "' \\\n";
  }
  out << "    '1:program:_files' \\\n"
         "    '*::argument:_files'\n"
         "}\n"
         "if [[ $funcstack[1] == _ddprun ]]; then _ddprun \"$@\"; elif (( $+functions[compdef] )); then compdef "
         "_ddprun ddprun; fi\n";
  return out.str();
}

std::string fish_script() {
  std::ostringstream out;
  out << "# Completion of ddprun for fish: ddprun --print-completion fish | source\n";
  for (const auto& option : option_table()) {
    if (!is_shown(option)) continue;
    out << "complete -c ddprun";
    if (option.letter != 0) out << " -s " << option.letter;
    out << " -l " << option.name << " -d '" << quoted(option.help) << '\'';
    const auto words = literal_values(option);
    if (option.value_name == "DIR")
      out << " -r -a '(__fish_complete_directories)'";
    else if (!words.empty())
      out << " -x -a '" << joined(words) << '\'';
    else if (!option.value_name.empty())
      out << " -x";
    out << '\n';
  }
  return out.str();
}

}  // namespace

std::string completion_script(const std::string& shell) {
  return shell == "bash" ? bash_script() : shell == "zsh" ? zsh_script() : fish_script();
}

}  // namespace ddp::launcher
