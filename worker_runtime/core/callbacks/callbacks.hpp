// Runs what users have asked to be called when work has completed, and lets go of what that holds, on a thread that
// does nothing else. The threads that move data and keep deadlines never run a user's code: a callback may hold the
// last handle of a group, whose end waits for those threads, or take long.
//
// Threads: any. One of its own in each process, from the first post_callback() on.
// Fork:    a forked child has one of its own.
#pragma once

#include <functional>

namespace ddp::core {

// Calls `call`, which must not throw, and destroys it, behind all that were posted before. Where no thread can be had,
// before this returns.
void post_callback(std::function<void()> call);

// Whether this is the thread that makes the calls: it can't wait for one of them.
bool is_callback_thread();

}  // namespace ddp::core
