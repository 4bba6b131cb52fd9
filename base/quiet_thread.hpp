// Threads of the library's own: they take none of the program's signals.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>

namespace ddp::base {

// Throws std::system_error.
template <class Function>
std::thread start_quiet_thread(Function function) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // a new thread inherits the mask
  try {
    std::thread thread(std::move(function));
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

// Runs `work` on a thread of its own, for which nobody needs to wait; if no thread can be had, before it returns.
// `work` owns all that it uses.
template <class Work>
std::future<std::invoke_result_t<Work>> run_detached(Work work) {
  const auto task = std::make_shared<std::packaged_task<std::invoke_result_t<Work>()>>(std::move(work));
  auto result = task->get_future();
  try {
    start_quiet_thread([task] { (*task)(); }).detach();
  } catch (const std::system_error&) {
    (*task)();
  }
  return result;
}

}  // namespace ddp::base
