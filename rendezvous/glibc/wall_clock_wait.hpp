// pthread_cond_clockwait(3) for a glibc that has none (2.28 and 2.29): waits by the wall clock for what is left by
// `clock`, as the C++ library built there does. Where the wall clock is set meanwhile, the wait ends early, with 0,
// which callers take for a wakeup without a reason, or as much later as the clock was set back.
#pragma once

#include <pthread.h>
#include <time.h>

#include <cerrno>

namespace ddp::glibc {

inline timespec sum_of(const timespec& a, const timespec& b) {
  constexpr long kSecond = 1'000'000'000;
  const long nanoseconds = a.tv_nsec + b.tv_nsec;
  return {a.tv_sec + b.tv_sec + nanoseconds / kSecond, nanoseconds % kSecond};
}

// Zero where `from` is not before `to`.
inline timespec time_left(const timespec& from, const timespec& to) {
  constexpr long kSecond = 1'000'000'000;
  timespec left{to.tv_sec - from.tv_sec, to.tv_nsec - from.tv_nsec};
  if (left.tv_nsec < 0) left = {left.tv_sec - 1, left.tv_nsec + kSecond};
  return left.tv_sec < 0 ? timespec{} : left;
}

inline int wall_clock_wait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* end) {
  if (clock == CLOCK_REALTIME) return ::pthread_cond_timedwait(condition, mutex, end);
  timespec now{};
  timespec wall{};
  ::clock_gettime(clock, &now);
  ::clock_gettime(CLOCK_REALTIME, &wall);
  const timespec wall_end = sum_of(wall, time_left(now, *end));
  const int result = ::pthread_cond_timedwait(condition, mutex, &wall_end);
  if (result != ETIMEDOUT) return result;
  ::clock_gettime(clock, &now);
  const timespec left = time_left(now, *end);
  return left.tv_sec == 0 && left.tv_nsec == 0 ? ETIMEDOUT : 0;
}

}  // namespace ddp::glibc
