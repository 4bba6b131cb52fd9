// What is executed for the program that the user named: itself, or a Python interpreter with it.
//
// Pure: what it must know of the machine comes in as a function.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/command_line/given_options.hpp"
#include "rendezvous/membership/outcome.hpp"

namespace ddp::launcher {

// What kind of thing a path names, as the kernel would tell on exec. windows_script: an executable whose first line
// names an interpreter and ends as lines do on Windows, so that the kernel looks for one whose name ends in '\r'.
// python_script: an executable whose first line names Python.
enum class FileKind { missing, executable, not_executable, directory, windows_script, python_script };
using FileLookup = std::function<FileKind(const std::string& path)>;

// What is executed: `path` for exec, and the argument list with arguments[0].
struct Command {
  std::string path;
  std::vector<std::string> arguments;  // may hold ${local_rank}, see environment/worker_environment.hpp
  bool runs_python = false;            // as far as the command and the program's first line say
};

// The program can't be run, or is not found.
class ProgramError : public UsageError {
 public:
  ProgramError(rendezvous::Outcome outcome, const std::string& what_happened, std::string where, std::string try_this)
      : UsageError(what_happened, std::move(where), std::move(try_this)), outcome_(outcome) {}
  const rendezvous::Outcome& outcome() const { return outcome_; }

 private:
  rendezvous::Outcome outcome_;
};

enum class RunBy { name, python, python_module, itself };  // name: Python where it ends in .py

// Whether a path or a word such as "/usr/bin/python3.11" names Python's interpreter.
bool is_python(const std::string& interpreter);

// Whether the line, the first of a script, names Python: `#!/usr/bin/env python3`.
bool names_python(const std::string& first_line);

// `program`: the program and its arguments, not empty. Throws ProgramError.
Command command_of(const std::vector<std::string>& program, RunBy run_by, const EnvironmentLookup& environment,
                   const FileLookup& file_kind);

}  // namespace ddp::launcher
