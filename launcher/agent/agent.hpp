// Runs one job on this node: performs what the node's cores decide, and tells them what happened.
//
// The shell around launcher/node: signals, timers, the guardian's reports, the store, the connection to membership and
// the workers' output meet on one event loop. The decisions are made there, the processes are handled by the guardian.
//
// Threads: one, the program's main thread. Spawning happens in the guardian, which has one thread too.
#pragma once

#include <string>
#include <vector>

#include "launcher/command_line/launch_config.hpp"
#include "launcher/output/report_pipe.hpp"

namespace ddp::launcher {

// Returns ddprun's exit code once no process of the job is left. `environment` is ddprun's own, as "NAME=value". What
// tells how the job has ended goes to the report pipe, if there is one, and else to stderr. Throws
// ddp::Error or std::system_error where the job can't be started at all; nothing is left then either. Throws
// RunningJobError (guarded_loop.hpp) where ddprun itself fails later.
int run_job(const LaunchConfig& config, const std::vector<std::string>& environment, const ReportPipe& report_pipe);

}  // namespace ddp::launcher
