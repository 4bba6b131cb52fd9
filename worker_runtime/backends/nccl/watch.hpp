// The one thread of a process that looks after what its GPUs have under way.
//
// NCCL and CUDA have no descriptor to wait on, so it looks again and again: every millisecond while things happen, then
// less and less often, down to every 20 ms; and not at all while nothing is under way.
//
// Threads: one of its own, from the first group on; it calls Watched::look(). add(), remove() and wake() from any.
// Fork:    a forked child has no such thread, and no group.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace ddp::nccl_backend {

// What a look has found.
enum class Look {
  idle,        // nothing is under way
  unchanged,   // what was under way is so still
  awaited,     // the same, and a thread of the host has begun to wait for it
  progressed,  // something has started or ended
};

class Watched {
 public:
  virtual ~Watched() = default;
  virtual Look look(std::chrono::steady_clock::time_point now) = 0;
};

// How long until the next look. Pure.
class WatchPeriod {
 public:
  static constexpr std::chrono::microseconds kMin{1'000};
  static constexpr std::chrono::microseconds kMax{20'000};

  void take(Look look);
  void reset() { period_ = kMin; }
  std::chrono::microseconds get() const { return period_; }

 private:
  std::chrono::microseconds period_ = kMin;
};

class Watch {
 public:
  // The one of this process. It is never destroyed, so that its thread finds all it needs however the process ends.
  static Watch& of_process();

  void add(Watched* watched);

  // No look at it is under way, or comes, once this returns.
  void remove(Watched* watched);

  // Says that something has begun to be under way, or that somebody waits for it.
  void wake();

 private:
  void run();
  Look look_at_all(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::vector<Watched*> watched_;
  Watched* looked_at_ = nullptr;
  bool is_woken_ = false;     // since the last look began
  bool sleeps_long_ = false;  // longer than the least period: so that not every call wakes the thread
  bool has_started_ = false;
};

}  // namespace ddp::nccl_backend
