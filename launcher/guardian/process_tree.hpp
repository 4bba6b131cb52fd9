// Finds and signals the descendants of this process, whatever sessions and groups they moved to.
//
// This process must be a subreaper (PR_SET_CHILD_SUBREAPER): then an orphaned descendant becomes its child, so nothing
// can leave the tree, and `waitpid` saying that there are no children proves that the tree is empty.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::launcher {

struct Process {
  pid_t pid = 0;
  pid_t parent = 0;
};

// All descendants of `root` that have not ended, as /proc shows them. Who is one from the beginning to the end of the
// call is found, but who is forked meanwhile may be missed. Where the kernel lists the children of a process
// (CONFIG_PROC_CHILDREN), the cost follows the size of the tree, else that of the machine.
std::vector<Process> descendants_of(pid_t root);

// All processes of the machine that have not ended.
std::vector<Process> all_processes();

// Pure: the same over a given list of all processes; parents before children.
std::vector<Process> descendants_of(pid_t root, const std::vector<Process>& all);

// Whether the process has a handler of its own for the signal: SigCgt of /proc/<pid>/status. Where it has none, a
// signal such as SIGUSR1 would end it.
bool handles_signal(pid_t pid, int signal_number);

// Whether it is stopped by job control, or about to be, and so hears no signal but SIGCONT and SIGKILL. Not one that a
// debugger holds.
bool is_stopped(pid_t pid);

// Whether the end of a process has begun: it exits, is being killed, or is a zombie that nobody has reaped. The memory
// of a process may take seconds to be freed. False where there is no such process. Takes about 10 us where the process
// runs on.
bool is_ending(pid_t pid);

// How long somebody has looked.
struct LookTime {
  std::chrono::nanoseconds cpu, wall;  // of this thread; since any moment
};

// Takes 1 ms of this thread's time at most, some 100 processes, and gives up after 20 ms if others have the CPU. Which
// of the processes have begun to end; it does not look at the rest.
std::set<pid_t> who_is_ending(const std::vector<pid_t>& processes, const std::function<LookTime()>& time_now);
LookTime look_time_now();

// Pure: the same of one thread, from the text of its stat file.
bool is_thread_ending(std::string_view stat);

// The value that a variable had when the process was executed; empty where there is none, or no such process. Who
// writes over its own arguments and environment, to show another title, is not known any more. Waits up to a second for
// a process that executes another program at that moment.
std::string first_value_of(pid_t pid, std::string_view variable);

// The children of this process; nearly free where there are none.
std::set<pid_t> children_of_this_process();

// Reaps the children that have ended, and sends SIGKILL to all other descendants. `spared` children and what descends
// from them are left alone. Returns whether none is left. Does not block: it waits for no child, and what it reads of
// /proc the kernel makes without the lock of a process's memory.
bool kill_children_once(const std::set<pid_t>& spared);

// Does that again whenever a child has ended, until none is left. Returns false if some are left after `limit_ms` (they
// are in uninterruptible sleep).
bool kill_all_children(const std::set<pid_t>& spared, int limit_ms);

}  // namespace ddp::launcher
