#include "worker_runtime/agent_link/termination.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace ddp::agent_link {

namespace {

static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<pid_t>::is_always_lock_free);

// The handler and the link's thread each set their own flag, then read the other's: whoever is second acts.
std::atomic<bool> has_come{false};
std::atomic<bool> is_meant{false};
std::atomic<pid_t> keeper{0};  // whose handler it is: forked children inherit it

void set_default() {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGTERM, &action, nullptr);
}

void handle(int) {
  const int saved = errno;
  const bool is_of_this_process = ::getpid() == keeper.load();
  if (is_of_this_process) has_come.store(true);
  if (!is_of_this_process || is_meant.load()) {
    set_default();
    ::raise(SIGTERM);  // blocked until this handler returns
  }
  errno = saved;
}

}  // namespace

void keep_sigterm() {
  struct sigaction present {};
  if (::sigaction(SIGTERM, nullptr, &present) != 0 || (present.sa_flags & SA_SIGINFO) != 0 ||
      present.sa_handler != SIG_DFL)
    return;
  keeper.store(::getpid());
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART | SA_ONSTACK;  // the program is not to notice
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGTERM, &action, nullptr);
}

void sigterm_is_meant() {
  is_meant.store(true);
  if (!has_come.load()) return;
  struct sigaction present {};
  if (::sigaction(SIGTERM, nullptr, &present) != 0 || present.sa_handler != handle) return;  // the program's own by now
  set_default();
  ::kill(::getpid(), SIGTERM);
}

}  // namespace ddp::agent_link
