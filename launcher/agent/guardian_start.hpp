// Prepares this process for its guardian: signals, limits, and what the guardian must know of the job.
//
// Threads: the program's main thread, before the event loop and any other thread.
#pragma once

#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "launcher/binding/binding.hpp"
#include "launcher/command_line/launch_config.hpp"
#include "launcher/guardian/guardian.hpp"
#include "rendezvous/security/tls.hpp"

namespace ddp::launcher {

// Blocks `signals` and makes this process a subreaper. With a token it also hides this process's memory. `inherited` is
// ddprun's own environment, as "NAME=value". `report_pipe`: -1 is none.
guardian::GuardianOptions prepare_guardian(const LaunchConfig& config, const std::vector<std::string>& inherited,
                                           const std::vector<Binding>& bindings, const std::string& scratch_directory,
                                           const std::string& cgroup,
                                           std::shared_ptr<const security::Security> security, const sigset_t& signals,
                                           int report_pipe);

}  // namespace ddp::launcher
