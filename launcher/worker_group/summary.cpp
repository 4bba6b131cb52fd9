#include "launcher/worker_group/summary.hpp"

#include <cerrno>
#include <csignal>

namespace ddp::launcher {
namespace {

std::string what_to_try(const Failure& failure, const FailureContext& context) {
  const auto restarts = context.restarts_max == 0 ? std::string("; `--max-restarts=N` starts all workers again") : "";
  const auto& ending = failure.ending;
  if (ending.kind == Ending::Kind::not_started) {
    if (ending.value == ENOENT)
      return "`ls -l " + context.program + "`: the file, or the interpreter that its first line names, is missing";
    if (ending.value == ENOEXEC)
      return "`file " + context.program + "`: a script needs a first line such as #!/bin/sh, a program this machine's type";
    if (ending.value == EAGAIN || ending.value == ENOMEM)
      return "`ulimit -u` and `free -m`: the limit of processes or memory is reached";
    return "`ls -l " + context.program + "`, and run it without ddprun";
  }
  if (ending.kind == Ending::Kind::killed) {
    switch (ending.value) {
      case SIGKILL:
        return "`dmesg | grep -i oom` on " + context.host + ": running out of memory ends a process this way" + restarts;
      case SIGSEGV:
      case SIGABRT:
      case SIGBUS:
      case SIGILL:
      case SIGFPE:
        return "`ulimit -c unlimited` and run again for a core file, then `gdb " + context.program + " core`" + restarts;
      case SIGTERM:
      case SIGINT:
      case SIGHUP: return "find who sent it: a scheduler's limit, or a person; ddprun did not" + restarts;
      default: return "`man 7 signal` tells what sends " + signal_name(ending.value) + restarts;
    }
  }
  if (context.stderr_tail.empty())
    return "it wrote nothing to stderr: run `" + context.program + "` without ddprun, or look at its own logs" + restarts;
  if (ending.value == 2) return "exit code 2 mostly means wrong use: its stderr says what to change";
  if (ending.value == 127) return "a command that the program starts was not found; its stderr names it" + restarts;
  return "read its stderr above for the reason" + restarts;
}

}  // namespace

std::string describe_duration(std::chrono::milliseconds duration) {
  const auto ms = duration.count();
  const auto minutes = ms / 60'000;
  if (ms < 1000) return std::to_string(ms) + " ms";
  if (minutes < 2) return std::to_string(ms / 1000) + (ms % 1000 < 100 ? "" : "." + std::to_string(ms % 1000 / 100)) + " s";
  if (minutes < 120) return std::to_string(minutes) + " min";
  return std::to_string(minutes / 60) + " h " + std::to_string(minutes % 60) + " min";
}

std::string describe_failure(const Failure& failure) {
  auto text = "rank " + std::to_string(failure.local_rank) + " " + describe(failure.ending);
  if (failure.ending.kind != Ending::Kind::not_started) text += " after " + describe_duration(failure.after);
  return text;
}

std::string failure_summary(const Failure& failure, const FailureContext& context) {
  auto text = "error: " + describe_failure(failure);
  const int stopped = failure.stopped_count;
  if (stopped == 1) text += context.workers == 2 ? "; the other rank was stopped" : "; one other rank was stopped";
  if (stopped > 1)
    text += (stopped == context.workers - 1 ? "; the other " : "; ") + std::to_string(stopped) +
            (stopped == context.workers - 1 ? "" : " other") + " ranks were stopped";
  text += "\nwhere: host " + context.host;
  if (context.pid != 0) text += ", pid " + std::to_string(context.pid);
  text += ", round " + std::to_string(failure.round) + ", " + context.program + '\n';
  if (!context.message.empty()) text += "cause: " + context.message + '\n';
  if (!context.stderr_tail.empty()) {
    text += "its stderr ended with:\n";
    for (const auto& line : context.stderr_tail) text += "  | " + line + '\n';
  }
  return text + "try:   " + what_to_try(failure, context) + '\n';
}

}  // namespace ddp::launcher
