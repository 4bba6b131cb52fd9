// How hosts begin a call: what the ranks of each have called, and a few bytes of each host, reach every leader.
//
// Gathers by doubling (Bruck): in step k a leader sends what it has of its own host and those after it, 2^k hosts at
// most, to the host 2^k before it, and gets as much from the one 2^k after it. So two hosts need one exchange, and any
// number of them the logarithm of it. What hosts called goes along with the data, so a call that differs is found
// without an exchange of its own; then the bytes are not those of the receiver's call, and are taken in all the same.
//
// Threads: one caller at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "worker_runtime/backends/cpu/hosts/host_streams.hpp"
#include "worker_runtime/core/bootstrap/host_layout.hpp"
#include "worker_runtime/core/failure/fingerprint.hpp"

namespace ddp::cpu_backend {

using core::Fingerprint;
using core::FingerprintWords;
using core::HostLayout;

class HostOpening {
 public:
  // Of one host's bytes. With all hosts' they are little enough to be gathered faster than they go round a ring.
  static std::size_t bytes_max(int host_count);

  HostOpening(const HostLayout& layout, int own_host);

  // `calls` are those of this host's ranks; `bytes_of(h)` is what host h sends in the same call. Throws Error for what
  // no leader sends.
  HostStreams::End run(HostStreams& streams, const std::vector<Fingerprint>& calls,
                       std::span<const std::byte> own_bytes, const std::function<std::size_t(int host)>& bytes_of,
                       const HostStreams::Wait& wait);

  // Of the last run(). All ranks of all hosts made the same call, and each host sent what is its part of it.
  bool is_same_everywhere() const { return is_same_everywhere_; }
  std::span<const std::byte> bytes_of(int host) const { return hosts_[static_cast<std::size_t>(host)].bytes; }
  Fingerprint call_of(int rank) const;

 private:
  struct Head;
  struct OfHost {
    std::vector<Fingerprint> calls;  // one, where all ranks made the same
    std::span<const std::byte> bytes;
    std::size_t end = 0;  // of what it sent, in received_
  };

  std::size_t sent_bytes_max(int host) const;
  void write_own_head(const std::vector<Fingerprint>& calls, std::size_t bytes);
  std::size_t take_in(std::size_t at, std::size_t up_to, int host);
  void compare(const std::function<std::size_t(int host)>& bytes_of);
  [[noreturn]] void refuse(int host) const;
  int host_after(std::size_t distance) const { return static_cast<int>((own_ + distance) % hosts_.size()); }

  HostLayout layout_;
  std::size_t own_;
  std::vector<OfHost> hosts_;
  std::vector<std::byte> own_head_;
  std::vector<std::byte> received_;  // what all other hosts sent, from the one after this on
  bool is_same_everywhere_ = true;
};

}  // namespace ddp::cpu_backend
