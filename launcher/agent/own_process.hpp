// What concerns ddprun's own process: the signals it takes in, its limits, its folder for short-lived files.
//
// Threads: the program's main thread.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>

#include <future>
#include <string>
#include <vector>

#include "base/locked_folder.hpp"

namespace ddp::launcher {

// Those that stop the job and those that are passed on, beside SIGTSTP, SIGCONT, SIGWINCH and SIGCHLD; less what was
// ignored at the start (nohup): that stays ignored, for the workers too. A blocked signal reaches a signalfd even where
// it is ignored, so those must not be in the set. In a step of Slurm, the warnings that are passed on are taken in all
// the same: who started this ddprun may be another one's worker.
sigset_t signals_to_take_in(const std::vector<int>& stop, const std::vector<int>& forward, bool is_in_step);

// In a step such a warning comes to every process, of which those that do not expect it would die.
bool is_ignored_by_workers(int warning);

// " from pid 17 (uid 1000)"; empty where no process sent the signal.
std::string sender_of(const signalfd_siginfo& info);

// Throws std::system_error.
int open_signalfd(const sigset_t& signals);

// Stops this process as a terminal's ctrl-z does. Returns after SIGCONT, or at once if nobody could continue this
// process. Requires that SIGTSTP is blocked and has its default action.
void suspend_this_process();

// To the highest that is allowed: each worker costs ddprun two streams, a pidfd and the connections of its store
// clients. Returns the limit before, which the workers get back.
rlimit raise_descriptor_limit();

// A folder of this run for files that workers leave for the agent; gone with the run. Throws UsageError.
//
// A ddprun that is killed leaves its folder, and the next one of the same user and host removes that. It knows by a
// lock on the folder (flock), which the kernel releases once ddprun and its guardian have ended.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  const std::string& path() const { return folder_.path; }

  // On a thread of its own, beside what else ends; the destructor waits for it, at most 2 s. Requires that nobody uses
  // the folder any more.
  void begin_removal();

 private:
  base::LockedFolder folder_;
  std::future<void> removal_;
};

}  // namespace ddp::launcher
