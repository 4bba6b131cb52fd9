// Which ranks share a host, as far as shared memory goes: two containers of one machine are two hosts here.
//
// Pure. Hosts count from 0 in the order of their lowest ranks; a host's lowest rank is its leader, which speaks for the
// others. The ranks of a host need not be neighbours.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ddp::core {

class HostLayout {
 public:
  HostLayout() = default;

  // host_of[r] is the host of rank r. Throws InvalidArgument unless hosts are numbered as above.
  explicit HostLayout(std::vector<int> host_of);

  // From what ranks say of their hosts: equal text, one host.
  static HostLayout from_identities(const std::vector<std::string>& identities);

  static HostLayout one_host(int size) { return HostLayout(std::vector<int>(static_cast<std::size_t>(size), 0)); }

  int size() const { return static_cast<int>(host_of_.size()); }
  int host_count() const { return static_cast<int>(ranks_of_.size()); }
  int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& ranks_of(int host) const { return ranks_of_[static_cast<std::size_t>(host)]; }
  int leader_of(int host) const { return ranks_of(host).front(); }
  int index_of(int rank) const { return index_of_[static_cast<std::size_t>(rank)]; }  // among the ranks of its host

  // Where a rank stands when all are ordered by host: the ranks of a host then are neighbours.
  std::size_t place_of(int rank) const { return first_place(host_of(rank)) + static_cast<std::size_t>(index_of(rank)); }
  std::size_t first_place(int host) const { return first_place_[static_cast<std::size_t>(host)]; }
  int rank_at(std::size_t place) const { return rank_at_[place]; }

 private:
  std::vector<int> host_of_, index_of_;
  std::vector<std::vector<int>> ranks_of_;
  std::vector<std::size_t> first_place_;
  std::vector<int> rank_at_;
};

// What this process's host is: equal for processes that can share memory, and never for others.
std::string host_identity();

}  // namespace ddp::core
