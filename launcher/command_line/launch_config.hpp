// What one run of ddprun is to do: the command line, the environment and the machine's facts, made into values.
//
// Pure: what it must know of the machine comes in as `Machine`, so that a test can be any machine.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/command_line/option_table.hpp"

namespace ddp::launcher {

// What kind of thing a path names, as the kernel would tell on exec.
enum class FileKind { missing, executable, not_executable, directory };

struct Machine {
  int gpu_count = 0;  // that the workers may use
  int cpu_count = 1;  // that this process may run on
  std::function<FileKind(const std::string& path)> file_kind;
};

// What is executed: `path` for exec, and the argument list with arguments[0].
struct Command {
  std::string path;
  std::vector<std::string> arguments;
};

struct LaunchConfig {
  enum class Mode { launch, show_help, show_version };
  Mode mode = Mode::launch;
  int workers = 1;
  int restarts_max = 0;
  std::chrono::milliseconds grace{30'000};
  bool prefix_lines = true;
  std::vector<std::string> store_allow;
  Command command;
  std::string program;  // as the user named it
  std::string notice;  // a choice that the user left to ddprun, to be said; or empty
};

// The program can't be run (126) or is not found (127).
class ProgramError : public UsageError {
 public:
  ProgramError(int exit_code, const std::string& what_happened, std::string where, std::string try_this)
      : UsageError(what_happened, std::move(where), std::move(try_this)), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// Throws UsageError or ProgramError.
LaunchConfig parse_command_line(const std::vector<std::string>& arguments, const EnvironmentLookup& environment,
                                const Machine& machine);

}  // namespace ddp::launcher
