// ddprun: starts data-parallel training and keeps it running.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "base/random_key.hpp"
#include "ddp/error.hpp"
#include "launcher/agent/agent.hpp"
#include "launcher/agent/guarded_loop.hpp"
#include "launcher/binding/worker_bindings.hpp"
#include "launcher/command_line/completion.hpp"
#include "launcher/command_line/help.hpp"
#include "launcher/command_line/launch_config.hpp"
#include "launcher/command_line/machine.hpp"
#include "launcher/output/report_pipe.hpp"
#include "launcher/plan/plan.hpp"
#include "launcher/remote/front.hpp"
#include "launcher/remote/job_on_hosts.hpp"
#include "launcher/remote/node_service.hpp"
#include "rendezvous/membership/outcome.hpp"

namespace {

using namespace ddp::launcher;
using ddp::rendezvous::exit_code_of;
using ddp::rendezvous::Outcome;
namespace outcome = ddp::rendezvous::outcome;

// ddprun's environment as it was at the start: the token is not in it any more.
EnvironmentLookup environment_with(const std::optional<std::string>& token) {
  return [token](const std::string& name) -> std::optional<std::string> {
    if (name == ddp::security::kTokenVariable) return token;
    const char* value = std::getenv(name.c_str());
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  };
}

int report(const UsageError& error, const Outcome& outcome) {
  std::cerr << "error: " << error.what() << "\nwhere: " << error.where() << "\ntry:   " << error.try_this() << '\n';
  return exit_code_of(outcome);
}

// A standard descriptor that the caller closed would become the next file that is opened, and be taken for the console.
void fill_standard_descriptors() {
  for (int fd = 0; fd < 3; ++fd)
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != fd) std::abort();
}

// What an option such as --help asks to be shown.
std::string shown(const LaunchConfig& config, const std::vector<std::string>& environment) {
  switch (config.mode) {
    case LaunchConfig::Mode::launch: break;
    case LaunchConfig::Mode::show_plan: return plan_text(config, environment, worker_bindings(config, environment));
    case LaunchConfig::Mode::show_help: return help_text();
    case LaunchConfig::Mode::show_version: return "ddprun " DDPRUN_VERSION "\n";
    case LaunchConfig::Mode::show_man_page: return man_page(DDPRUN_VERSION);
    case LaunchConfig::Mode::show_completion: return completion_script(config.completion_shell);
  }
  return {};
}

int show(const std::string& text) {
  const bool is_shown = static_cast<bool>(std::cout << text << std::flush);
  return exit_code_of(is_shown ? Outcome(outcome::Success{}) : Outcome(outcome::Unexplained{}));
}

int launch(const std::vector<std::string>& arguments, const EnvironmentLookup& variable,
           const ReportPipe& report_pipe) {
  if (arguments == std::vector<std::string>{kNodeServiceOption}) return serve_remote_node();
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  const auto machine = this_machine(variable);
  if (const auto job = job_on_hosts(arguments, variable, environment, machine, ddp::base::random_key)) {
    if (!job->only_shows) return run_on_hosts(*job, environment);
    return show(hosts_plan_text(*job));
  }
  const auto config = parse_command_line(arguments, variable, machine);
  if (config.mode == LaunchConfig::Mode::launch) return run_job(config, environment, report_pipe);
  return show(shown(config, environment));
}

}  // namespace

int main(int argc, char** argv) {
  fill_standard_descriptors();
  const auto report_pipe = ReportPipe::take();
  const auto variable = environment_with(ddp::security::take_token_variable());
  try {
    return launch({argv + 1, argv + argc}, variable, report_pipe);
  } catch (const ProgramError& error) {
    return report(error, error.outcome());
  } catch (const UsageError& error) {
    return report(error, outcome::WrongUse{});
  } catch (const ddp::security::TokenError& error) {
    return report(UsageError(error.what(), error.where(), error.try_this()), outcome::WrongUse{});
  } catch (const ddp::InvalidArgument& error) {
    std::cerr << "error: " << error.what() << '\n';
    return exit_code_of(outcome::WrongUse{});
  } catch (const RunningJobError& error) {
    return report(UsageError(error.what(), "running the job", "`ulimit -a` shows this shell's limits"),
                  outcome::Unexplained{});
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what()
              << "\nwhere: starting the job\ntry:   `ulimit -a` shows this shell's limits\n";
    return exit_code_of(outcome::NotStarted{});
  }
}
