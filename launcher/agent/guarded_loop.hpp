// What ddprun does about an exception out of its event loop.
#pragma once

#include <exception>
#include <stdexcept>

namespace ddp::launcher {

// The event loop failed after processes of the job had been started.
class RunningJobError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Calls run(). If it throws although the job has run, writes the log and throws RunningJobError with the same words.
// Any other exception passes: the job could not be started.
void run_guarded(const auto& run, const auto& has_job_run, const auto& write_log) {
  try {
    run();
  } catch (const std::exception& error) {
    if (!has_job_run()) throw;
    write_log();
    throw RunningJobError(error.what());
  }
}

}  // namespace ddp::launcher
