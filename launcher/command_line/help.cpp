#include "launcher/command_line/help.hpp"

#include <algorithm>
#include <sstream>
#include <string_view>

#include "base/man_page.hpp"
#include "launcher/command_line/option_table.hpp"

namespace ddp::launcher {
namespace {

using base::for_troff;

constexpr std::size_t kHelpColumn = 30, kWidth = 98;

constexpr std::string_view kUsage = "ddprun [options] program [arguments]";
constexpr std::string_view kPurpose =
    "Starts data-parallel training on one node or many, and keeps it running. The program is a Python script (its name "
    "ends in .py, or -m is given) or any executable file. Each worker finds its rank in its environment, as under "
    "torchrun. Options go before the program. Dashes and underscores are equal, and an unambiguous prefix of an option "
    "is enough.";
struct Example {
  std::string_view line, meaning;
};
constexpr Example kExamples[] = {
    {"ddprun train.py --epochs 10", "one worker per GPU of this machine"},
    {"ddprun --nproc-per-node=4 --max-restarts=3 ./train",
     "four workers; all start again if one fails, up to three times"},
    {"ddprun --hosts=node0:8,node1:8 train.py", "eight workers on each of two hosts, started from here by ssh"},
    {"ddprun --nnodes=2 --node-rank=0 --master-addr=node0 train.py", "on node0; with --node-rank=1 on the other node"},
    {"ddprun --nnodes=2:4 --rdzv-backend=c10d --rdzv-endpoint=node0 --rdzv-id=job1 train.py",
     "the same on 2 to 4 nodes; nodes that come within the last call take part"},
};
constexpr std::string_view kEnvironment =
    "The default of every option may come from DDPRUN_<OPTION>, or from PET_<OPTION> as with torchrun: "
    "DDPRUN_MAX_RESTARTS=3. An on/off option takes 1 or 0.";
constexpr std::string_view kExitCodes =
    "0 all workers ended with 0; the code of the worker whose failure is the cause; 128 + n for signal n; 2 wrong use; "
    "126 the program can't be run; 127 it is not found; 75 stopped on purpose, may be started again; 76 no progress; "
    "77 the nodes did not meet; 124 the time of --timeout is over";

// Appends words at `column`, broken at kWidth and indented by `indent`.
void wrap(std::ostringstream& out, std::string_view text, std::size_t column, std::size_t indent) {
  out << std::string(column < indent ? indent - column : 0, ' ');
  column = std::max(column, indent);
  bool first = true;
  std::istringstream words{std::string(text)};
  for (std::string word; words >> word; first = false) {
    if (!first && column + 1 + word.size() > kWidth) {
      out << '\n' << std::string(indent, ' ');
      column = indent;
    } else if (!first) {
      out << ' ';
      ++column;
    }
    out << word;
    column += word.size();
  }
  out << '\n';
}

// "-r, --redirects MASK"
std::string spelling(const Option& option) {
  std::string out = option.letter != 0 ? std::string("-") + option.letter + ", " : "    ";
  out += "--" + std::string(option.name);
  return option.value_name.empty() ? out : out + " " + std::string(option.value_name);
}

}  // namespace

std::string help_text() {
  std::ostringstream out;
  out << "usage: " << kUsage << "\n\n";
  wrap(out, kPurpose, 0, 0);
  out << '\n';
  for (const auto& example : kExamples) out << "  " << example.line << "\n      " << example.meaning << '\n';
  auto group = OptionGroup::hidden;
  for (const auto& option : option_table()) {
    if (option.group == OptionGroup::hidden) continue;
    if (option.group != group) out << '\n' << title(option.group) << '\n';
    group = option.group;
    auto left = "  " + spelling(option);
    out << left;
    if (left.size() + 2 > kHelpColumn) {
      out << '\n';
      left.clear();
    }
    wrap(out, option.help, left.size(), kHelpColumn);
  }
  out << '\n';
  wrap(out, kEnvironment, 0, 0);
  out << '\n';
  wrap(out, "exit codes: " + std::string(kExitCodes), 0, 0);
  return out.str();
}

std::string man_page(const std::string& version) {
  std::ostringstream out;
  out << ".TH DDPRUN 1 \"\" \"ddprun " << for_troff(version) << "\"\n"
      << ".SH NAME\nddprun \\- starts data\\-parallel training and keeps it running\n"
      << ".SH SYNOPSIS\n.B ddprun\n[options] program [arguments]\n"
      << ".SH DESCRIPTION\n"
      << for_troff(kPurpose) << '\n'
      << ".SH EXAMPLES\n";
  for (const auto& example : kExamples)
    out << ".TP\n.nf\n" << for_troff(example.line) << "\n.fi\n" << for_troff(example.meaning) << '\n';
  out << ".SH OPTIONS\n";
  auto group = OptionGroup::hidden;
  for (const auto& option : option_table()) {
    if (option.group == OptionGroup::hidden) continue;
    if (option.group != group) out << ".SS " << title(option.group) << '\n';
    group = option.group;
    out << ".TP\n\\fB";
    if (option.letter != 0) out << "\\-" << option.letter << "\\fR, \\fB";
    out << "\\-\\-" << for_troff(option.name) << "\\fR";
    if (!option.value_name.empty()) out << " \\fI" << for_troff(option.value_name) << "\\fR";
    out << '\n' << for_troff(option.help) << '\n';
  }
  out << ".SH ENVIRONMENT\n"
      << for_troff(kEnvironment) << '\n'
      << ".SH EXIT STATUS\n"
      << for_troff(kExitCodes) << "\n.SH SEE ALSO\n.BR ddp\\-rendezvous (1),\n.BR ddp\\-bench (1)\n";
  return out.str();
}

}  // namespace ddp::launcher
