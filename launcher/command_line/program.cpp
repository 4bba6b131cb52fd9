#include "launcher/command_line/program.hpp"

#include <iterator>
#include <sstream>

#include "launcher/command_line/option_values.hpp"

namespace ddp::launcher {

namespace outcome = rendezvous::outcome;

namespace {

bool is_named(const std::string& path, const std::string& name) { return path.substr(path.rfind('/') + 1) == name; }

bool is_executable(FileKind kind) { return kind == FileKind::executable || kind == FileKind::python_script; }

// Whether a command runs Python: `python3 x.py`, `env -u X A=1 python x.py`, but not `env bash x.sh`.
bool are_words_of_python(const std::vector<std::string>& words) {
  if (words.empty()) return false;
  if (is_python(words.front())) return true;
  if (!is_named(words.front(), "env")) return false;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const auto& word = words[i];
    const bool takes_next = word == "-u" || word == "-C" || word == "--unset" || word == "--chdir";
    if (takes_next) ++i;
    if (takes_next || word.starts_with('-') || word.find('=') != std::string::npos) continue;
    return is_python(word);
  }
  return false;
}

// The first executable of this name in the folders of PATH; empty where there is none.
std::string find_on_path(const std::string& name, const EnvironmentLookup& environment, const FileLookup& file_kind) {
  for (const auto& folder : split(environment("PATH").value_or("/usr/local/bin:/usr/bin:/bin"), ':')) {
    if (folder.empty()) continue;
    auto path = folder + "/" + name;
    if (is_executable(file_kind(path))) return path;
  }
  return {};
}

std::string find_python(const EnvironmentLookup& environment, const FileLookup& file_kind) {
  if (const auto exec = environment("PYTHON_EXEC"); exec && !exec->empty()) {
    const auto path = exec->find('/') == std::string::npos ? find_on_path(*exec, environment, file_kind) : *exec;
    if (!path.empty() && is_executable(file_kind(path))) return path;
    throw ProgramError(outcome::ProgramMissing{}, "the Python interpreter " + *exec + " is not an executable file",
                       "environment variable PYTHON_EXEC", "`unset PYTHON_EXEC`, or set it to an interpreter's path");
  }
  for (const auto* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (const auto folder = environment(variable); folder && !folder->empty())
      if (auto path = *folder + "/bin/python"; is_executable(file_kind(path))) return path;
  for (const auto* name : {"python3", "python"})
    if (auto path = find_on_path(name, environment, file_kind); !path.empty()) return path;
  throw ProgramError(outcome::ProgramMissing{}, "no Python interpreter found",
                     "PYTHON_EXEC, VIRTUAL_ENV, CONDA_PREFIX, then PATH",
                     "install python3, or set PYTHON_EXEC to an interpreter's path");
}

// `ddprun "python train.py"`: nothing has such a name.
void refuse_quoted_line(const std::vector<std::string>& program) {
  if (program.size() > 1 || program.front().find(' ') == std::string::npos) return;
  throw ProgramError(outcome::ProgramMissing{}, "there is no program or module named '" + program.front() + "'",
                     "the program to run", "without the quotes: `ddprun ... " + program.front() + "`");
}

Command python_command(bool module, const std::vector<std::string>& program, const EnvironmentLookup& environment,
                       const FileLookup& file_kind) {
  const auto& script = program.front();
  const bool is_missing = !module && file_kind(script) == FileKind::missing;
  if (module || is_missing) refuse_quoted_line(program);
  if (is_missing) {
    throw ProgramError(outcome::ProgramMissing{}, "the script " + script + " does not exist", "the program to run",
                       "check the path; it is relative to the working directory");
  }
  const auto python = find_python(environment, file_kind);
  Command command{python, {python, "-u"}, true};
  if (module) command.arguments.emplace_back("-m");
  command.arguments.insert(command.arguments.end(), program.begin(), program.end());
  return command;
}

Command program_command(const std::vector<std::string>& program, const EnvironmentLookup& environment,
                        const FileLookup& file_kind) {
  auto path = program.front();
  if (path.find('/') == std::string::npos) {
    const auto found = find_on_path(path, environment, file_kind);
    path = found.empty() ? "./" + path : found;
  }
  switch (file_kind(path)) {
    case FileKind::executable: return {path, program, are_words_of_python(program)};
    case FileKind::python_script: return {path, program, true};
    case FileKind::windows_script:
      throw ProgramError(outcome::ProgramUnusable{},
                         "the first line of " + program.front() + " ends as on Windows, so no interpreter is found",
                         "the program to run", "`sed -i 's/\\r$//' " + program.front() + "` changes all of its lines");
    case FileKind::missing:
      refuse_quoted_line(program);
      throw ProgramError(outcome::ProgramMissing{}, "the program " + program.front() + " does not exist",
                         program.front().find('/') == std::string::npos
                             ? "looked for on PATH and in the working directory"
                             : "the program to run",
                         "check the path; it is relative to the working directory");
    case FileKind::directory:
      throw ProgramError(outcome::ProgramUnusable{}, program.front() + " is a directory, not a program",
                         "the program to run", "name the file inside it that is to run");
    case FileKind::not_executable: break;
  }
  throw ProgramError(outcome::ProgramUnusable{}, "the file " + program.front() + " is not executable",
                     "the program to run",
                     "`chmod +x " + program.front() + "`, or `--run-path` if it is a Python script");
}

bool ends_in_py(const std::string& name) { return name.size() > 3 && name.compare(name.size() - 3, 3, ".py") == 0; }

}  // namespace

bool is_python(const std::string& interpreter) {
  const auto name = interpreter.substr(interpreter.rfind('/') + 1);
  return name.starts_with("python") && name.find_first_not_of("0123456789.", 6) == std::string::npos;
}

bool names_python(const std::string& first_line) {
  if (!first_line.starts_with("#!")) return false;
  std::istringstream line(first_line.substr(2));
  return are_words_of_python({std::istream_iterator<std::string>(line), {}});
}

Command command_of(const std::vector<std::string>& program, RunBy run_by, const EnvironmentLookup& environment,
                   const FileLookup& file_kind) {
  if (run_by == RunBy::name) run_by = ends_in_py(program.front()) ? RunBy::python : RunBy::itself;
  if (run_by == RunBy::itself) return program_command(program, environment, file_kind);
  return python_command(run_by == RunBy::python_module, program, environment, file_kind);
}

}  // namespace ddp::launcher
