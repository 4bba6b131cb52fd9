#include "launcher/node/job_summary.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "base/printable.hpp"
#include "rendezvous/membership/outcome.hpp"

namespace ddp::launcher {
namespace {

using base::printable;
using rendezvous::Ending;
using rendezvous::FailureReport;
using rendezvous::signal_name;

// As a shell takes it for one word: it may come from another node, and commands with it are shown to be copied.
std::string shell_word(const std::string& text) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || c >= 0x80 ||
           std::string_view("_./+=:@%,-").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (std::all_of(text.begin(), text.end(), is_plain)) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

// What an exception that nobody caught has said: of `terminate called after throwing an instance of 'X'` and `what():`,
// as GCC's and LLVM's libraries write it; empty where there is none.
std::string uncaught_exception(const std::vector<std::string>& stderr_tail) {
  constexpr std::string_view kType = "terminate called after throwing an instance of '",
                             kWhat = "  what():  ", kLlvm = "terminating due to uncaught exception of type ";
  std::string type, what;
  for (const auto& line : stderr_tail) {
    if (const auto at = line.find(kType); at != line.npos) type = line.substr(at + kType.size()), what.clear();
    if (const auto at = line.find(kWhat); at == 0) what = line.substr(kWhat.size());
    if (const auto at = line.find(kLlvm); at != line.npos) return line.substr(at + kLlvm.size());
  }
  if (!type.empty() && type.back() == '\'') type.pop_back();
  return what.empty() ? type : type + (type.empty() ? "" : ": ") + what;
}

bool is_run_by_python(const std::string& program) {
  const auto name = program.substr(program.rfind('/') + 1);
  const bool is_interpreter =
      name.starts_with("python") && name.find_first_not_of("0123456789.", 6) == std::string::npos;
  return is_interpreter || (name.size() > 3 && name.ends_with(".py"));
}

// faulthandler has written where each thread was. The first line may be too far up.
bool has_python_trace(const std::vector<std::string>& stderr_tail) {
  return std::any_of(stderr_tail.begin(), stderr_tail.end(), [](const std::string& line) {
    return line.find("Fatal Python error: ") != line.npos || line.find("(most recent call first):") != line.npos;
  });
}

// A shell, or another interpreter, has read lines that end with CR LF. printable() writes the CR as "\\r". A tail
// of stderr takes a CR for the redrawing of a line, so of a line with a raw CR only the text behind it is left.
bool has_met_carriage_return(const std::vector<std::string>& stderr_tail) {
  constexpr std::string_view kBehindCarriageReturn[] = {": invalid option", ": not found", ": command not found",
                                                        ": numeric argument required", ": No such file or directory"};
  return std::any_of(stderr_tail.begin(), stderr_tail.end(), [&](const std::string& line) {
    return line.find("$'\\r'") != line.npos || line.find("\\r:") != line.npos || line.find("\\r'") != line.npos ||
           line.starts_with("': ") || line.ends_with(": Illegal option -") ||
           std::find(std::begin(kBehindCarriageReturn), std::end(kBehindCarriageReturn), line) !=
               std::end(kBehindCarriageReturn);
  });
}

// A shell has not found the end of a block. The reason may be `then` or `fi` with a CR behind it.
bool has_unfinished_block(const std::vector<std::string>& stderr_tail) {
  return std::any_of(stderr_tail.begin(), stderr_tail.end(), [](const std::string& line) {
    return line.find(": syntax error: unexpected end of file") != line.npos ||
           line.find(": Syntax error: end of file unexpected") != line.npos ||
           line.ends_with(": Syntax error: word unexpected (expecting \"do\")") ||
           line.ends_with(": Syntax error: word unexpected (expecting \"in\")");
  });
}

// "rank 1", "ranks 1, 4"
std::string list_of_ranks(const std::vector<int>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) out += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return out;
}

std::string what_to_try(const FailureReport& failure, int restarts_max) {
  const auto restarts = restarts_max == 0 ? std::string("; `--max-restarts=N` starts all workers again") : "";
  const auto& ending = failure.ending;
  const auto program = shell_word(failure.program);
  if (ending.kind == Ending::Kind::not_started) {
    if (failure.says_why()) return "read the cause above, and make it good on " + failure.host;
    if (ending.value == ENOENT)
      return "`ls -l " + program + "`: the file, or the interpreter that its first line names, is missing";
    if (ending.value == ENOEXEC)
      return "`file " + program + "`: a script needs a first line such as #!/bin/sh, a program this machine's type";
    if (ending.value == EAGAIN || ending.value == ENOMEM)
      return "`ulimit -u` and `free -m`: the limit of processes or memory is reached";
    if (ending.value == EINVAL)
      return "without --numa-binding: the cores that it chose at the start may have been taken from ddprun since";
    return "`ls -l " + program + "`, and run it without ddprun";
  }
  if (!failure.gpu_faults.empty())
    return "look at what the GPU reported, above; `nvidia-smi -q` on " + failure.host + " shows its state" + restarts;
  if (failure.is_killed_by_ddprun())
    return "find out what it did instead: its log, and the flight recorder's files of the others" + restarts;
  if (ending.kind == Ending::Kind::killed) {
    switch (ending.value) {
      case SIGKILL:
        if (ending.out_of_memory == true)
          return "let each rank take less memory (a smaller batch, fewer processes that load data), or allow the job "
                 "more" +
                 restarts;
        if (ending.out_of_memory == false)
          return "find who sent it: a scheduler's limit, or a person; neither ddprun nor the kernel for want of memory "
                 "did" +
                 restarts;
        return "`dmesg | grep -i oom` on " + failure.host + ": running out of memory ends a process this way" +
               restarts;
      case SIGSEGV:
      case SIGABRT:
      case SIGBUS:
      case SIGILL:
      case SIGFPE:
        if (!uncaught_exception(failure.stderr_tail).empty())
          return "the exception above says what failed; `ulimit -c unlimited` and `gdb " + program +
                 " core` show where" + restarts;
        if (has_python_trace(failure.stderr_tail))
          return "its stderr shows where each Python thread was; a core file (`ulimit -c unlimited`) adds C and C++" +
                 restarts;
        if (failure.runs_python || is_run_by_python(failure.program))
          return "`export PYTHONFAULTHANDLER=1` and run again: Python then shows where each of its threads was" +
                 restarts;
        return "`ulimit -c unlimited` and run again for a core file, then `gdb " + program + " core`" + restarts;
      case SIGTERM:
      case SIGINT:
      case SIGHUP: return "find who sent it: a scheduler's limit, or a person; ddprun did not" + restarts;
      default: return "`man 7 signal` tells what sends " + signal_name(ending.value) + restarts;
    }
  }
  if (ending.kind == Ending::Kind::left && failure.is_own_error)
    return "read its stderr for the reason; it did not end within 2 s of leaving its process group, so ddprun ended "
           "it" +
           restarts;
  if (ending.kind == Ending::Kind::left)
    return "read its message above: no rank had failed; a network that loses connections looks so" + restarts;
  if (!failure.accused.empty())
    return "look at " + list_of_ranks(failure.accused) +
           ", for which it left its process group: their logs, and the flight recorder's files" + restarts;
  if (has_met_carriage_return(failure.stderr_tail))
    return "a script has lines that end with CR LF, as Windows writes them: `sed -i 's/\\r$//' FILE`";
  if (has_unfinished_block(failure.stderr_tail))
    return "`file SCRIPT`: if its lines end with CR LF, as Windows writes them, `sed -i 's/\\r$//' SCRIPT`; else a "
           "block of the shell script lacks its end";
  if (failure.stderr_tail.empty() && !failure.stderr_lost.empty())
    return "free some space on the disk of its log, which took nothing of what it wrote to stderr, and run again" +
           restarts;
  if (failure.stderr_tail.empty())
    return "it wrote nothing to stderr: run `" + program + "` without ddprun, or look at its own logs" + restarts;
  if (ending.value == 2) return "exit code 2 mostly means wrong use: its stderr says what to change";
  if (ending.value == 127) return "a command that the program starts was not found; its stderr names it" + restarts;
  return "read its stderr above for the reason" + restarts;
}

// "; the other 7 ranks were stopped"
std::string fate_of_others(const rendezvous::FinishJob& verdict) {
  const int stopped = verdict.stopped;
  const bool all_others = stopped == verdict.world_size - 1;
  if (stopped == 0) return {};
  if (stopped == 1) return all_others ? "; the other rank was stopped" : "; one other rank was stopped";
  return (all_others ? "; the other " : "; ") + std::to_string(stopped) + (all_others ? "" : " other") +
         " ranks were stopped";
}

// Its texts are those of a worker, perhaps on another node.
FailureReport with_printable_texts(FailureReport failure) {
  for (auto* text : {&failure.host, &failure.program, &failure.message, &failure.stderr_file, &failure.stderr_lost,
                     &failure.gpu_faults, &failure.killed_for})
    *text = printable(*text);
  for (auto& line : failure.stderr_tail) line = printable(line);
  return failure;
}

// Of a worker that failed too: "after it:  rank 2 ended with exit code 1 after 3.2 s, host gpu16"
std::string line_of_other(const FailureReport& other, const rendezvous::FinishJob& verdict) {
  const auto line = printable(describe_failure(other)) +
                    (other.says_why() ? " (" + printable(other.message) + ")" : "") + ", host " + printable(other.host);
  if (!verdict.seen_first) return "after it:  " + line;
  if (other.rank != *verdict.seen_first) return "after that: " + line;
  return std::string("seen first (") + (verdict.is_cause_certain ? "" : "probably ") + "a consequence, " +
         rendezvous::describe_duration(verdict.cause->job_time - other.job_time) + " before the cause): " + line;
}

std::string failure_summary(const FailureReport& failure, const rendezvous::FinishJob& verdict) {
  auto text = "error: " + describe_failure(failure) + rendezvous::certainty_text(verdict.is_cause_certain) +
              fate_of_others(verdict);
  if (verdict.what) text += "; " + printable(*verdict.what);
  text += "\nwhere: host " + failure.host;
  if (failure.pid != 0) text += ", pid " + std::to_string(failure.pid);
  text += ", round " + std::to_string(failure.round) + ", " + failure.program + '\n';
  const auto cause = failure.says_why() ? failure.message : uncaught_exception(failure.stderr_tail);
  if (!cause.empty()) text += "cause: " + cause + '\n';
  if (!failure.gpu_faults.empty()) text += "gpus:  " + failure.gpu_faults + '\n';
  if (!failure.stderr_tail.empty()) {
    text += "its stderr ended with:\n";
    for (const auto& line : failure.stderr_tail) text += "  | " + line + '\n';
  }
  if (!failure.stderr_file.empty())
    text += (failure.stderr_lost.empty() ? "all of its stderr: " : "its stderr, as far as the disk took it: ") +
            failure.stderr_file + " on " + failure.host +
            (failure.stderr_lost.empty() ? "" : " (" + failure.stderr_lost + ")") + '\n';
  for (const auto& other : verdict.consequences) text += line_of_other(other, verdict) + '\n';
  return text + "try:   " + what_to_try(failure, verdict.restarts_max) + '\n';
}

}  // namespace

std::string job_summary(const rendezvous::FinishJob& verdict) {
  if (verdict.cause) return failure_summary(with_printable_texts(*verdict.cause), verdict);
  if (!verdict.what) return {};
  if (!verdict.try_this) return printable(*verdict.what) + '\n';
  const bool is_time_over = verdict.exit_code == rendezvous::kTimeIsOver;
  return "error: " + printable(*verdict.what) +
         (is_time_over ? "\nwhere: the job as a whole" : "\nwhere: between the nodes of the job") +
         "\ntry:   " + printable(*verdict.try_this) + '\n';
}

}  // namespace ddp::launcher
