// How a job has ended, or one ddprun's part in it. Each exit code of ddprun is chosen here.
//
// docs/exit_codes.md has the table.
#pragma once

#include <optional>
#include <variant>

#include "rendezvous/membership/failure.hpp"

namespace ddp::rendezvous {

namespace outcome {

struct Success {};     // all workers ended with 0
struct WorkerFailed {  // and no restart was left
  Ending ending;
};
struct StoppedBySignal {  // ddprun or the whole job
  int signal_number = 0;
};
struct TimeIsOver {};     // the time of --timeout
struct StoppedAtStep {};  // all workers, at one agreed step
struct NoProgress {};     // round after round failed and kept nothing
struct NotTogether {};    // nodes did not come, too few are left, or the endpoint is out of reach
struct Unexplained {};    // workers were stopped, or live on, and no node has named one that failed
struct Told {             // by membership, which has chosen the code for all nodes
  int exit_code = 0;
};
struct GuardianEnded {  // and all workers of the node with it
  Ending ending;
};
struct WrongUse {};        // of ddprun
struct ProgramMissing {};  // or the interpreter that it needs
struct ProgramUnusable {};
struct NotStarted {};  // no process of the job could be started

}  // namespace outcome

using Outcome = std::variant<outcome::Success, outcome::WorkerFailed, outcome::StoppedBySignal, outcome::TimeIsOver,
                             outcome::StoppedAtStep, outcome::NoProgress, outcome::NotTogether, outcome::Unexplained,
                             outcome::Told, outcome::GuardianEnded, outcome::WrongUse, outcome::ProgramMissing,
                             outcome::ProgramUnusable, outcome::NotStarted>;

constexpr int kStoppedAtStep = 75, kNoProgress = 76, kRendezvousFailed = 77, kTimeIsOver = 124;

int exit_code_of(const Outcome& outcome);

// Of a ddprun that this signal killed; 0: not known.
std::optional<int> exit_code_of_killed(int signal_number);

}  // namespace ddp::rendezvous
