// A barrier of processes in memory that they share: each writes its own cache line and reads the others'.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>

namespace ddp::benchmarks {

constexpr int kRanksMax = 64;

// Between two looks of one that waits without sleeping.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

struct SpinBarrierLines {
  struct alignas(64) Line {
    std::atomic<std::uint32_t> arrived;
  };
  Line of_rank[kRanksMax];
};

// One rank's end of it. Where ranks outnumber cores it yields at every look, else only after a while.
class SpinBarrier {
 public:
  SpinBarrier(SpinBarrierLines& lines, int rank, int size)
      : lines_(lines),
        rank_(rank),
        size_(size),
        looks_before_yield_(size > static_cast<int>(std::thread::hardware_concurrency()) ? 0 : 20'000) {}

  void wait() {
    const std::uint32_t mine = ++count_;
    lines_.of_rank[rank_].arrived.store(mine, std::memory_order_release);
    for (int peer = 0; peer < size_; ++peer) {
      auto& arrived = lines_.of_rank[peer].arrived;
      for (int looks = 0; static_cast<std::int32_t>(arrived.load(std::memory_order_acquire) - mine) < 0; ++looks) {
        if (looks >= looks_before_yield_)
          ::sched_yield();
        else
          relax();
      }
    }
  }

 private:
  SpinBarrierLines& lines_;
  int rank_, size_, looks_before_yield_;
  std::uint32_t count_ = 0;
};

}  // namespace ddp::benchmarks
