// Which algorithm calls of one kind and size use on memory that only its own process sees: the one that was the fastest
// of late. That depends on the processor, on whether the cores of two ranks share a cache, and on what a virtual
// machine makes of both. It changes while a group lives: one algorithm takes five times as long as another, and a
// second later it is the other one.
//
// Each algorithm is tried at first. Later another than the fastest is tried now and then, less and less often as long
// as that changes nothing. All of them give the same bits. One rank of a host decides for all: with each call it shows
// the algorithm of the next.
//
// Pure: times go in. Threads: one caller at a time.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace ddp::cpu_backend {

enum class Algorithm : std::uint8_t {
  cached,    // through the staging, which stays in the caches
  streamed,  // through the staging, past the caches
  read,      // from the peers' own memory (PeerMemory)
};

class AlgorithmTimes {
 public:
  static constexpr int kFirstTries = 2;                        // of each algorithm
  static constexpr int kTryEveryMin = 16, kTryEveryMax = 256;  // calls

  // The algorithm of the call after the present one; of the first call it is Algorithm::cached. `may_read`: whether
  // Algorithm::read is one of them; once false, it stays false.
  Algorithm next(bool may_read);

  // A call of so many bytes took that long.
  void took(Algorithm algorithm, std::chrono::nanoseconds time, std::size_t bytes);

 private:
  static constexpr std::size_t kAlgorithms = 3;

  std::size_t fastest() const;

  std::array<double, kAlgorithms> ns_per_byte_{};  // 0 of one that has not been used
  int first_calls_ = 1;                            // how many have their algorithm
  int try_every_ = kTryEveryMin;
  int calls_ = 0;  // since another one was tried
  int turn_ = 0;   // of the others
};

}  // namespace ddp::cpu_backend
