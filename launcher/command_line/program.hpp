// What is executed for the program that the user named: itself, or a Python interpreter with it.
//
// Pure: what it must know of the machine comes in as a function.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/command_line/given_options.hpp"

namespace ddp::launcher {

// What kind of thing a path names, as the kernel would tell on exec.
enum class FileKind { missing, executable, not_executable, directory };
using FileLookup = std::function<FileKind(const std::string& path)>;

// What is executed: `path` for exec, and the argument list with arguments[0].
struct Command {
  std::string path;
  std::vector<std::string> arguments;  // may hold ${local_rank}, see environment/worker_environment.hpp
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

enum class RunBy { name, python, python_module, itself };  // name: Python where it ends in .py

// `program`: the program and its arguments, not empty. Throws ProgramError.
Command command_of(const std::vector<std::string>& program, RunBy run_by, const EnvironmentLookup& environment,
                   const FileLookup& file_kind);

}  // namespace ddp::launcher
