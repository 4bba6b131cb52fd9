#include "rendezvous/glibc/wall_clock_wait.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace ddp::glibc {
namespace {

struct Waiter {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t condition = PTHREAD_COND_INITIALIZER;

  int wait(clockid_t clock, const timespec& end) {
    ::pthread_mutex_lock(&mutex);
    const int result = wall_clock_wait(&condition, &mutex, clock, &end);
    ::pthread_mutex_unlock(&mutex);
    return result;
  }
};

timespec now_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return now;
}

TEST(WallClockWait, EndsNoEarlierThanAskedByEitherClock) {
  for (const clockid_t clock : {CLOCK_MONOTONIC, CLOCK_REALTIME}) {
    const timespec end = sum_of(now_of(clock), {0, 30'000'000});
    Waiter waiter;
    int result = 0;
    while (result == 0) result = waiter.wait(clock, end);
    EXPECT_EQ(result, ETIMEDOUT);
    const timespec left = time_left(now_of(clock), end);
    EXPECT_TRUE(left.tv_sec == 0 && left.tv_nsec == 0) << left.tv_nsec;
  }
}

TEST(WallClockWait, EndsAtOnceWhereTheTimeIsOver) {
  Waiter waiter;
  EXPECT_EQ(waiter.wait(CLOCK_MONOTONIC, {0, 1}), ETIMEDOUT);
}

TEST(WallClockWait, EndsWhenItIsWoken) {
  Waiter waiter;
  bool is_told = false;
  std::thread other([&] {
    ::pthread_mutex_lock(&waiter.mutex);
    is_told = true;
    ::pthread_cond_signal(&waiter.condition);
    ::pthread_mutex_unlock(&waiter.mutex);
  });
  const timespec end = sum_of(now_of(CLOCK_MONOTONIC), {20, 0});
  ::pthread_mutex_lock(&waiter.mutex);
  int result = 0;
  while (!is_told && result == 0) result = wall_clock_wait(&waiter.condition, &waiter.mutex, CLOCK_MONOTONIC, &end);
  ::pthread_mutex_unlock(&waiter.mutex);
  other.join();
  EXPECT_EQ(result, 0);
}

TEST(WallClockWait, ReckonsOverTheEndOfASecond) {
  const timespec sum = sum_of({1, 700'000'000}, {2, 400'000'000});
  EXPECT_EQ(sum.tv_sec, 4);
  EXPECT_EQ(sum.tv_nsec, 100'000'000);
  const timespec left = time_left({1, 700'000'000}, {3, 400'000'000});
  EXPECT_EQ(left.tv_sec, 1);
  EXPECT_EQ(left.tv_nsec, 700'000'000);
  EXPECT_EQ(time_left({3, 0}, {2, 999'999'999}).tv_sec, 0);
  EXPECT_EQ(time_left({3, 0}, {2, 999'999'999}).tv_nsec, 0);
}

}  // namespace
}  // namespace ddp::glibc
