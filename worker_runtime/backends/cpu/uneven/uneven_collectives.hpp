// Collectives in which ranks give and get different counts: all_gather_v, reduce_scatter_v and all_to_all_v.
//
// Ranks first agree on the call: its kind, type, operator and counts. Then every part moves as a message between two
// ranks, all at once, by the shortest way that the two have. A rank of a reduce_scatter_v keeps what it receives until
// all has come, about as much as its input, and then puts it together in the same order as a reduce_scatter: over the
// ranks of each host, then over the hosts.
//
// all_to_all_v: each rank tells each other what it will give, and all learn of the first pair that disagrees. So every
// rank finds the same mismatch, before any result is written.
//
// Threads: one caller at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker_runtime/core/bootstrap/host_layout.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::cpu_backend {

using core::HostLayout;
using process_group::Collective;
using process_group::CollectiveKind;

inline bool is_uneven(const Collective& collective) { return static_cast<bool>(collective.counts); }

class UnevenCollectives {
 public:
  // What they are made of. Each throws where it fails.
  struct Steps {
    std::function<void(const Collective&)> exchange;                     // a collective of equal counts
    std::function<void(std::span<const Collective>)> exchange_in_pairs;  // sends and receives, all at once
    std::function<void(const std::string& what)> fail_by_mismatch;       // does not return
  };

  UnevenCollectives(const HostLayout& layout, int rank) : layout_(layout), rank_(rank) {}

  // Requires an uneven collective and more than one rank.
  void run(const Collective& collective, const Steps& steps) const;

 private:
  void all_gather(const Collective& collective, const Steps& steps) const;
  void reduce_scatter(const Collective& collective, const Steps& steps) const;
  void all_to_all(const Collective& collective, const Steps& steps) const;
  void require_same_counts(const Collective& collective, const Steps& steps) const;
  void put_together(const Collective& collective, const std::vector<const std::byte*>& parts) const;

  const HostLayout& layout_;
  int rank_;
};

}  // namespace ddp::cpu_backend
