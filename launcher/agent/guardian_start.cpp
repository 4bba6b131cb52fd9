#include "launcher/agent/guardian_start.hpp"

#include <sys/prctl.h>

#include <filesystem>
#include <utility>

#include "launcher/agent/own_process.hpp"
#include "launcher/environment/worker_environment.hpp"

namespace ddp::launcher {
namespace {

std::vector<int> ignored_signals(const LaunchConfig& config) {
  std::vector<int> out;
  for (const int number : config.forward_signals)
    if (config.in_slurm_step && is_ignored_by_workers(number)) out.push_back(number);
  return out;
}

}  // namespace

guardian::GuardianOptions prepare_guardian(const LaunchConfig& config, const std::vector<std::string>& inherited,
                                           const std::vector<Binding>& bindings, const std::string& scratch_directory,
                                           const std::string& cgroup,
                                           std::shared_ptr<const security::Security> security, const sigset_t& signals,
                                           int report_pipe) {
  guardian::GuardianOptions options{
      config.command, {}, {}, raise_descriptor_limit(), bindings, scratch_directory, ignored_signals(config)};
  if (security) options.worker_core_limit = security::hide_memory();  // so the guardian's is too
  options.security = std::move(security);
  options.cgroup = cgroup;
  options.report_pipe = report_pipe;
  options.worker_directory = config.worker_directory;
  for (const auto& variable : inherited)
    if (!is_withheld(name_of(variable)) && !(config.virtual_local_rank && name_of(variable) == "CUDA_VISIBLE_DEVICES"))
      options.environment.push_back(variable);
  if (!config.worker_directory.empty()) {  // as a shell has it
    std::erase_if(options.environment, [](const std::string& variable) { return name_of(variable) == "PWD"; });
    options.environment.push_back("PWD=" + std::filesystem::canonical(config.worker_directory).string());
  }
  ::signal(SIGCHLD, SIG_DFL);  // whoever ignores it is not told how children end
  ::sigprocmask(SIG_BLOCK, &signals, &options.worker_signal_mask);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  return options;
}

}  // namespace ddp::launcher
