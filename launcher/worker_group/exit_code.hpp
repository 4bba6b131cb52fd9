// How processes end, and the exit code of ddprun that follows. The table is in docs/exit_codes.md.
#pragma once

#include <string>

namespace ddp::launcher {

// How one worker ended.
struct Ending {
  enum class Kind { exited, killed, not_started };
  Kind kind = Kind::exited;
  int value = 0;             // exit code, signal, or errno of exec
  bool core_dumped = false;  // of a killed one

  bool is_success() const { return kind == Kind::exited && value == 0; }
};

// From what waitpid reports.
Ending ending_of(int wait_status);

// 0 to 255, as a shell would report it: the code itself, 128 + signal, 127 for a program that is missing and 126 for one
// that can't be run. A worker's own 75 to 77 becomes 1, because those mean something else when ddprun says them.
int exit_code_of(const Ending& ending);

// "SIGKILL", or "signal 99" where it has no name.
std::string signal_name(int signal_number);

// "ended with exit code 3", "was killed by SIGSEGV (core dumped)", "could not be started: ...".
std::string describe(const Ending& ending);

}  // namespace ddp::launcher
