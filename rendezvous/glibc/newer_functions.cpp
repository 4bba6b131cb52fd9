// What is newer than glibc 2.28 and in use here, by the C++ library's archive mostly: made of what 2.28 has. As in
// moved_functions.S these are hidden.
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "rendezvous/glibc/wall_clock_wait.hpp"

namespace {

using CondClockWait = int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);

}  // namespace

extern "C" {

// 2.32, read by the C++ library's counters of references: "there may be threads" is always right.
char __libc_single_threaded = 0;

// 2.30
pid_t gettid() noexcept { return static_cast<pid_t>(::syscall(SYS_gettid)); }

// 2.32
const char* sigabbrev_np(int signal_number) noexcept {
  static constexpr std::array<const char*, 32> kNames{
      nullptr, "HUP",  "INT",  "QUIT", "ILL",    "TRAP",   "ABRT",  "BUS",  "FPE",  "KILL", "USR1",
      "SEGV",  "USR2", "PIPE", "ALRM", "TERM",   "STKFLT", "CHLD",  "CONT", "STOP", "TSTP", "TTIN",
      "TTOU",  "URG",  "XCPU", "XFSZ", "VTALRM", "PROF",   "WINCH", "POLL", "PWR",  "SYS"};
  return signal_number > 0 && signal_number < static_cast<int>(kNames.size())
             ? kNames[static_cast<std::size_t>(signal_number)]
             : nullptr;
}

// 2.36, of std::random_device.
std::uint32_t arc4random() noexcept {
  std::uint32_t number = 0;
  if (::getentropy(&number, sizeof number) != 0)
    ::abort();  // only where the kernel has no getrandom(), which is 3.17's
  return number;
}

// 2.30, of std::condition_variable's waits with a limit. Where glibc has it, its own.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* end) {
  static const auto real = reinterpret_cast<CondClockWait>(::dlsym(RTLD_DEFAULT, "pthread_cond_clockwait"));
  return real != nullptr ? real(condition, mutex, clock, end)
                         : ddp::glibc::wall_clock_wait(condition, mutex, clock, end);
}

}  // extern "C"
