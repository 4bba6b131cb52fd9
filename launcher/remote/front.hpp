// Starts a job on several hosts from this machine, shows what they print, and ends it: ddprun with --hosts.
//
// The job itself is that of the hosts' ddpruns. This process connects them with the user: output, rank 0's stdin,
// signals, the exit code.
//
// Threads: one, the program's main thread.
#pragma once

#include <string>
#include <vector>

#include "launcher/remote/job_on_hosts.hpp"

namespace ddp::launcher {

// Returns ddprun's exit code. `environment` is ddprun's own, as "NAME=value". Throws std::system_error where nothing
// could be started.
int run_on_hosts(const JobOnHosts& job, const std::vector<std::string>& environment);

// What would be started, for --dry-run.
std::string hosts_plan_text(const JobOnHosts& job);

}  // namespace ddp::launcher
