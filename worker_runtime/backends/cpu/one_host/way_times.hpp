// Which way calls of one kind and size take through memory that only its own process sees: the one that was the fastest
// of late. That depends on the processor, on whether the cores of two ranks share a cache, and on what a virtual
// machine makes of both, which changes while a group lives: one way takes five times as long as another, and the other
// way round a second later.
//
// Each way is tried at first, and later another than the fastest now and then: less and less often as long as that
// changes nothing. All of them give the same bits. One rank of a host decides for all: with each call it shows the way
// of the next.
//
// Pure: times go in. Threads: one caller at a time.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace ddp::cpu_backend {

enum class Way : std::uint8_t {
  cached,    // through the staging, which stays in the caches
  streamed,  // through the staging, past the caches
  read,      // from the peers' own memory (PeerMemory)
};

class WayTimes {
 public:
  static constexpr int kFirstTries = 2;                        // of each way
  static constexpr int kTryEveryMin = 16, kTryEveryMax = 256;  // calls

  // The way of the call after the present one; of the first call it is Way::cached. `may_read`: whether Way::read is
  // one of them; once false, it stays false.
  Way next(bool may_read);

  // A call of so many bytes went that way.
  void took(Way way, std::chrono::nanoseconds time, std::size_t bytes);

 private:
  static constexpr std::size_t kWays = 3;

  std::size_t fastest() const;

  std::array<double, kWays> ns_per_byte_{};  // 0 of one that has not been taken
  int first_calls_ = 1;                      // how many have their way
  int try_every_ = kTryEveryMin;
  int calls_ = 0;  // since another way was tried
  int turn_ = 0;   // of the others
};

}  // namespace ddp::cpu_backend
