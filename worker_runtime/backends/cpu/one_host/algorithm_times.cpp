#include "worker_runtime/backends/cpu/one_host/algorithm_times.hpp"

#include <algorithm>

namespace ddp::cpu_backend {

Algorithm AlgorithmTimes::next(bool may_read) {
  const int count = may_read ? kAlgorithms : kAlgorithms - 1;
  if (!may_read) ns_per_byte_[static_cast<std::size_t>(Algorithm::read)] = 0;
  if (first_calls_ < count * kFirstTries) return static_cast<Algorithm>(first_calls_++ / kFirstTries);
  const int best = static_cast<int>(fastest());
  if (++calls_ < try_every_) return static_cast<Algorithm>(best);
  calls_ = 0;
  try_every_ = std::min(2 * try_every_, kTryEveryMax);
  return static_cast<Algorithm>((best + 1 + turn_++ % (count - 1)) % count);
}

std::size_t AlgorithmTimes::fastest() const {
  std::size_t best = 0;
  for (std::size_t other = 1; other < kAlgorithms; ++other) {
    if (ns_per_byte_[other] > 0 && (ns_per_byte_[best] == 0 || ns_per_byte_[other] < ns_per_byte_[best])) best = other;
  }
  return best;
}

// A faster call is believed at once, a slower one little by little: a process may have lost its core for a moment.
void AlgorithmTimes::took(Algorithm algorithm, std::chrono::nanoseconds time, std::size_t bytes) {
  const std::size_t fastest_before = fastest();
  double& known = ns_per_byte_[static_cast<std::size_t>(algorithm)];
  const double now = static_cast<double>(time.count()) / static_cast<double>(bytes);
  known = known == 0 || now < known ? now : (3 * known + std::min(now, 2 * known)) / 4;
  if (fastest() == fastest_before) return;
  calls_ = 0;
  try_every_ = kTryEveryMin;
}

}  // namespace ddp::cpu_backend
