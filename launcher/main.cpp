// ddprun: starts data-parallel training on this machine and keeps it running.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "ddp/error.hpp"
#include "launcher/agent/agent.hpp"
#include "launcher/command_line/launch_config.hpp"
#include "launcher/command_line/machine.hpp"

namespace {

using namespace ddp::launcher;

std::optional<std::string> variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

int report(const UsageError& error, int exit_code) {
  std::cerr << "error: " << error.what() << "\nwhere: " << error.where() << "\ntry:   " << error.try_this() << '\n';
  return exit_code;
}

// A standard descriptor that the caller closed would become the next file that is opened, and be taken for the console.
void fill_standard_descriptors() {
  for (int fd = 0; fd < 3; ++fd)
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != fd) std::abort();
}

int launch(const std::vector<std::string>& arguments) {
  const auto config = parse_command_line(arguments, variable, this_machine(variable));
  if (config.mode == LaunchConfig::Mode::show_help) std::cout << help_text();
  if (config.mode == LaunchConfig::Mode::show_version) std::cout << "ddprun " DDPRUN_VERSION "\n";
  if (config.mode != LaunchConfig::Mode::launch) return std::cout.flush() ? 0 : 1;
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  return run_job(config, environment);
}

}  // namespace

int main(int argc, char** argv) {
  fill_standard_descriptors();
  try {
    return launch({argv + 1, argv + argc});
  } catch (const ProgramError& error) {
    return report(error, error.exit_code());
  } catch (const UsageError& error) {
    return report(error, 2);
  } catch (const ddp::InvalidArgument& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\nwhere: starting the job\ntry:   `ulimit -a` shows this shell's limits\n";
    return 1;
  }
}
