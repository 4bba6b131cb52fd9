// SIGTERM in a process that asks should_stop(). A scheduler may send it to every process of the job, the launcher
// included: then it means that the job is to stop, which the launcher tells each worker by its link, at a step. The
// launcher sends the message `stop` before a SIGTERM of its own: then it means this process, and ends it.
//
// Threads: any.
// Fork:    a forked child, which has no link, dies of SIGTERM as it would without this; an exec'd one inherits nothing.
#pragma once

namespace ddp::agent_link {

// From now on a SIGTERM is kept until it is known to be meant. Does nothing where the program, or who started it, has
// decided on SIGTERM itself: only the default disposition is taken.
void keep_sigterm();

// One that comes from now on, or has been kept, ends the process as the default disposition does.
void sigterm_is_meant();

}  // namespace ddp::agent_link
