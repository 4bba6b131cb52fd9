#include "worker_runtime/backends/cpu/hosts/ring_sum.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "worker_runtime/backends/cpu/reduce/reduce.hpp"

namespace ddp::cpu_backend {

std::span<std::byte> RingSum::room(std::size_t rest_bytes) const {
  return piece_.subspan(filled_, std::min(piece_.size(), rest_bytes + summed_) - filled_);
}

std::size_t RingSum::take(std::size_t bytes, std::span<std::byte> rest, Part part) {
  filled_ += bytes;
  const std::size_t arrived = filled_ - summed_;
  const bool is_last = arrived == rest.size();
  const std::size_t to_sum = is_last ? arrived : arrived / kCacheLineBytes * kCacheLineBytes;
  std::byte* const own = rest.data();
  std::array<const std::byte*, 2> sources{piece_.data() + summed_, own};
  if (part.own_elements_first) std::swap(sources[0], sources[1]);
  const ReduceOp op = part.completes_sum || op_ != ReduceOp::average ? op_ : ReduceOp::sum;
  reduce({type_, op, ranks_}, sources, {&own, 1}, {0, to_sum / size_of(type_)});
  summed_ += to_sum;
  if (is_last || summed_ == piece_.size()) filled_ = summed_ = 0;
  return to_sum;
}

}  // namespace ddp::cpu_backend
