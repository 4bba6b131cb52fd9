#include "launcher/agent/failure_details.hpp"

#include "launcher/worker_group/exit_code.hpp"

namespace ddp::launcher {

rendezvous::RoundEnded with_details(rendezvous::RoundEnded ended, const LaunchConfig& config,
                                    const GuardianLink& guardian, const Output& output,
                                    const std::vector<GpuFault>& gpu_faults) {
  for (auto& failure : ended.failures) {
    failure.pid = guardian.pid_of(failure.local_rank);
    failure.program = config.program;
    failure.runs_python = config.command.runs_python;
    failure.stderr_file = output.stderr_file(failure.local_rank);
    failure.gpu_faults = describe_faults(gpu_faults, failure.job_time, failure.job_time - failure.after);
    // Also if the files were not read in time.
    const bool may_be_cause = &failure == &ended.failures.front() || failure.accuses_nobody();
    if (failure.stderr_file.empty() && may_be_cause) failure.stderr_tail = output.stderr_tail(failure.local_rank);
  }
  return ended;
}

ReasonFiles::Paths reason_paths(const std::vector<int>& local_ranks, const Output& output) {
  ReasonFiles::Paths paths;
  for (const int local_rank : local_ranks) {
    paths.error_files.push_back(output.error_file(local_rank));
    paths.stderr_files.push_back(output.stderr_file(local_rank));
  }
  return paths;
}

Reasons with_tails(Reasons reasons, const std::vector<int>& local_ranks, const Output& output) {
  reasons.stderr_tails.resize(local_ranks.size());
  for (std::size_t i = 0; i < local_ranks.size(); ++i)
    if (output.stderr_file(local_ranks[i]).empty()) reasons.stderr_tails[i] = output.stderr_tail(local_ranks[i]);
  return reasons;
}

RootCause root_cause_of(const NodeCore::TellCaller& what, const Output& output) {
  const auto& cause = what.cause;
  return {what.is_own ? output.error_file(cause.local_rank) : "",
          cause.ending.kind == Ending::Kind::killed
              ? -cause.ending.value
              : rendezvous::exit_code_of(rendezvous::outcome::WorkerFailed{cause.ending}),
          describe_failure(cause)};
}

}  // namespace ddp::launcher
