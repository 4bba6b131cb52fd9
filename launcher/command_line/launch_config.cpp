#include "launcher/command_line/launch_config.hpp"

#include "ddp/error.hpp"
#include "rendezvous/store/door.hpp"

#include <algorithm>
#include <charconv>
#include <csignal>
#include <sstream>

namespace ddp::launcher {
namespace {

constexpr int kWorkersMax = 4096;
constexpr int kRestartsMax = 1'000'000;
constexpr int kGraceSecondsMax = 7 * 24 * 3600;

std::optional<int> whole_number(const std::string& text, int low, int high) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high) return {};
  return value;
}

int number_option(const GivenOption& given, int low, int high) {
  if (const auto value = whole_number(given.value, low, high)) return *value;
  const std::string name(given.option->name);
  throw UsageError("--" + name + " takes a whole number from " + std::to_string(low) + " to " + std::to_string(high) +
                       ", not '" + given.value + "'",
                   given.where, "`--" + name + "=" + std::to_string(low) + "`");
}

int worker_count(const GivenOption& given, const Machine& machine) {
  if (given.value == "cpu") return machine.cpu_count;
  if (given.value == "auto") return machine.gpu_count > 0 ? machine.gpu_count : machine.cpu_count;
  if (given.value == "gpu") {
    if (machine.gpu_count > 0) return machine.gpu_count;
    throw UsageError("--nproc-per-node=gpu, but no GPU can be used here", given.where,
                     "`--nproc-per-node=cpu` or a number; `nvidia-smi -L` and CUDA_VISIBLE_DEVICES tell what is visible");
  }
  if (const auto value = whole_number(given.value, 1, kWorkersMax)) return *value;
  throw UsageError("--nproc-per-node takes a number from 1 to " + std::to_string(kWorkersMax) +
                       ", gpu, cpu or auto, not '" + given.value + "'",
                   given.where, "`--nproc-per-node=1`");
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

std::vector<std::string> store_allow_option(const GivenOption& given) {
  auto blocks = split(given.value, ',');
  try {
    store::AllowList::parse(blocks);
  } catch (const InvalidArgument& error) {
    throw UsageError(error.what(), given.where, "`--store-allow=10.0.0.0/8`, a list of such blocks, or `any`");
  }
  return blocks;
}

// The first executable of this name in the folders of PATH; empty where there is none.
std::string find_on_path(const std::string& name, const EnvironmentLookup& environment, const Machine& machine) {
  for (const auto& folder : split(environment("PATH").value_or("/usr/local/bin:/usr/bin:/bin"), ':')) {
    auto path = folder + "/" + name;
    if (machine.file_kind(path) == FileKind::executable) return path;
  }
  return {};
}

std::string find_python(const EnvironmentLookup& environment, const Machine& machine) {
  if (const auto exec = environment("PYTHON_EXEC"); exec && !exec->empty()) {
    const auto path = exec->find('/') == std::string::npos ? find_on_path(*exec, environment, machine) : *exec;
    if (!path.empty() && machine.file_kind(path) == FileKind::executable) return path;
    throw ProgramError(127, "the Python interpreter " + *exec + " is not an executable file",
                       "environment variable PYTHON_EXEC", "`unset PYTHON_EXEC`, or set it to an interpreter's path");
  }
  for (const auto* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (const auto folder = environment(variable); folder && !folder->empty())
      if (auto path = *folder + "/bin/python"; machine.file_kind(path) == FileKind::executable) return path;
  for (const auto* name : {"python3", "python"})
    if (auto path = find_on_path(name, environment, machine); !path.empty()) return path;
  throw ProgramError(127, "no Python interpreter found", "PYTHON_EXEC, VIRTUAL_ENV, CONDA_PREFIX, then PATH",
                     "install python3, or set PYTHON_EXEC to an interpreter's path");
}

Command python_command(bool module, const std::vector<std::string>& program, const EnvironmentLookup& environment,
                       const Machine& machine) {
  const auto& script = program.front();
  if (!module) {
    const auto kind = machine.file_kind(script);
    if (kind == FileKind::missing)
      throw ProgramError(127, "the script " + script + " does not exist", "the program to run",
                         "check the path; it is relative to the working directory");
  }
  const auto python = find_python(environment, machine);
  Command command{python, {python, "-u"}};
  if (module) command.arguments.emplace_back("-m");
  command.arguments.insert(command.arguments.end(), program.begin(), program.end());
  return command;
}

Command program_command(const std::vector<std::string>& program, const EnvironmentLookup& environment,
                        const Machine& machine) {
  auto path = program.front();
  if (path.find('/') == std::string::npos) {
    const auto found = find_on_path(path, environment, machine);
    path = found.empty() ? "./" + path : found;
  }
  switch (machine.file_kind(path)) {
    case FileKind::executable: return {path, program};
    case FileKind::missing:
      throw ProgramError(127, "the program " + program.front() + " does not exist",
                         program.front().find('/') == std::string::npos ? "looked for on PATH and in the working directory"
                                                                        : "the program to run",
                         "check the path; it is relative to the working directory");
    case FileKind::directory:
      throw ProgramError(126, program.front() + " is a directory, not a program", "the program to run",
                         "name the file inside it that is to run");
    case FileKind::not_executable: break;
  }
  throw ProgramError(126, "the file " + program.front() + " is not executable", "the program to run",
                     "`chmod +x " + program.front() + "`, or give it a name that ends in .py if it is a Python script");
}

bool ends_in_py(const std::string& name) { return name.size() > 3 && name.compare(name.size() - 3, 3, ".py") == 0; }

}  // namespace

LaunchConfig parse_command_line(const std::vector<std::string>& arguments, const EnvironmentLookup& environment,
                                const Machine& machine) {
  const auto line = resolve(arguments, environment);
  LaunchConfig config;
  bool module = false, no_python = false, workers_given = false;
  config.workers = std::max(1, machine.gpu_count);
  config.stop_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  if (const auto grace = environment("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")) {
    const auto seconds = whole_number(*grace, 0, kGraceSecondsMax);
    if (!seconds)
      throw UsageError("a whole number of seconds is wanted, not '" + *grace + "'",
                       "environment variable TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "`--shutdown-timeout=30`");
    config.grace = std::chrono::seconds(*seconds);
  }
  for (const auto& given : line.options) {
    const auto name = given.option->name;
    const bool on = given.value == "1";
    if (name == "help") config.mode = LaunchConfig::Mode::show_help;
    if (name == "version" && config.mode == LaunchConfig::Mode::launch) config.mode = LaunchConfig::Mode::show_version;
    if (name == "nnodes" && given.value != "1" && given.value != "1:1")
      throw UsageError("--nnodes=" + given.value + ": only one node is supported so far", given.where, "`--nnodes=1`");
    if (name == "nproc-per-node") {
      config.workers = worker_count(given, machine);
      workers_given = true;
    }
    if (name == "max-restarts") config.restarts_max = number_option(given, 0, kRestartsMax);
    if (name == "module") module = on;
    if (name == "no-python") no_python = on;
    if (name == "shutdown-timeout") config.grace = std::chrono::seconds(number_option(given, 0, kGraceSecondsMax));
    if (name == "no-prefix") config.output.prefix_lines = !on;
    if (name == "store-allow") config.store_allow = store_allow_option(given);
  }
  if (config.mode != LaunchConfig::Mode::launch) return config;
  if (module && no_python)
    throw UsageError("--module and --no-python exclude each other", "ddprun's command line", "drop one of them");
  if (line.program.empty() || line.program.front().empty())
    throw UsageError("no program given", "the end of ddprun's command line",
                     "`ddprun --nproc-per-node=2 train.py`; `ddprun --help` shows more");
  if (!workers_given)
    config.notices.push_back(machine.gpu_count > 0 ? "starting " + std::to_string(config.workers) +
                                                         " workers, one per GPU (--nproc-per-node)"
                                                   : "starting 1 worker, as there is no GPU (--nproc-per-node)");
  config.program = line.program.front();
  config.command = module || (ends_in_py(line.program.front()) && !no_python)
                       ? python_command(module, line.program, environment, machine)
                       : program_command(line.program, environment, machine);
  return config;
}

}  // namespace ddp::launcher
