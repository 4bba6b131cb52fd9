#include "launcher/worker_group/exit_code.hpp"

#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstring>

namespace ddp::launcher {

Ending ending_of(int wait_status) {
  if (WIFSIGNALED(wait_status)) return {Ending::Kind::killed, WTERMSIG(wait_status), WCOREDUMP(wait_status) != 0};
  return {Ending::Kind::exited, WEXITSTATUS(wait_status), false};
}

int exit_code_of(const Ending& ending) {
  constexpr int kFirstOwn = 75, kLastOwn = 77;  // ddprun's own verdicts
  switch (ending.kind) {
    case Ending::Kind::exited: return ending.value >= kFirstOwn && ending.value <= kLastOwn ? 1 : ending.value;
    case Ending::Kind::killed: return 128 + ending.value;
    case Ending::Kind::not_started: return ending.value == ENOENT ? 127 : 126;
  }
  return 1;
}

std::string signal_name(int signal_number) {
  const char* abbreviation = sigabbrev_np(signal_number);
  return abbreviation != nullptr ? std::string("SIG") + abbreviation : "signal " + std::to_string(signal_number);
}

std::string describe(const Ending& ending) {
  switch (ending.kind) {
    case Ending::Kind::exited: return "ended with exit code " + std::to_string(ending.value);
    case Ending::Kind::killed:
      return "was killed by " + signal_name(ending.value) + (ending.core_dumped ? " (core dumped)" : "");
    case Ending::Kind::not_started: return std::string("could not be started: ") + std::strerror(ending.value);
  }
  return {};
}

}  // namespace ddp::launcher
