// The few lines that say how a job failed, for a person: what, where, what to try.
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "launcher/worker_group/worker_group.hpp"

namespace ddp::launcher {

struct FailureContext {
  std::string host;
  int pid = 0;  // of the worker that failed; 0 if it never ran
  int workers = 1;
  int restarts_max = 0;
  std::string program;                   // as the user named it
  std::string message;                   // from the worker's error file; or empty
  std::vector<std::string> stderr_tail;  // its last lines, oldest first
};

// "3.2 s", "12 min", "2 h 5 min".
std::string describe_duration(std::chrono::milliseconds duration);

// "rank 1 was killed by SIGKILL after 3.2 s", with what the worker itself wrote of it.
std::string describe_failure(const Failure& failure);

// Ends in a newline.
std::string failure_summary(const Failure& failure, const FailureContext& context);

}  // namespace ddp::launcher
