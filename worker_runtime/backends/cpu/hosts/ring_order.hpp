// In which order the slices of an all_reduce go round the leaders of hosts (host_ring.hpp), as the leader of one host
// sees it.
//
// Pure. A leader takes as many turns as slices pass it: each but one as a part of a sum, then each but one as a result.
// In its first turn it sends the slice of its own host, in every later one the slice that it received in the turn
// before.
#pragma once

#include <cstddef>
#include <span>

#include "ddp/memory.hpp"
#include "worker_runtime/backends/cpu/reduce/reduce.hpp"

namespace ddp::cpu_backend {

class RingOrder {
 public:
  RingOrder(int hosts, int own, std::span<std::byte> elements, DataType type)
      : hosts_(static_cast<std::size_t>(hosts)),
        own_(static_cast<std::size_t>(own)),
        elements_(elements),
        type_(type) {}

  int next() const { return static_cast<int>((own_ + 1) % hosts_); }             // it sends to this host
  int before() const { return static_cast<int>((own_ + hosts_ - 1) % hosts_); }  // it receives from this host

  std::size_t turns() const { return 2 * (hosts_ - 1); }

  // What it receives in a turn: a part of a sum, which its own elements then complete in the last such turn.
  bool is_sum(std::size_t turn) const { return turn + 1 < hosts_; }
  bool completes_sum(std::size_t turn) const { return turn + 2 == hosts_; }
  bool own_elements_first() const { return hosts_ == 2 && own_ == 0; }  // in a sum; else the part that it receives

  std::span<std::byte> sent_in(std::size_t turn) const { return slice((own_ + 2 * hosts_ - turn) % hosts_); }
  std::span<std::byte> received_in(std::size_t turn) const { return sent_in(turn + 1); }

 private:
  std::span<std::byte> slice(std::size_t host) const {
    const std::size_t element = size_of(type_);
    const Slice slice = slice_of(elements_.size() / element, type_, static_cast<int>(host), static_cast<int>(hosts_));
    return elements_.subspan(slice.begin * element, (slice.end - slice.begin) * element);
  }

  std::size_t hosts_, own_;
  std::span<std::byte> elements_;
  DataType type_;
};

}  // namespace ddp::cpu_backend
