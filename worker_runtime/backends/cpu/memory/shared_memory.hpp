// The memory that the ranks of a group on one host share: an anonymous file (memfd) that all of them map.
//
// It starts with the control block and grows by segments. A segment has one part for each
// rank, equally large; the part of a rank is reserved by that rank, so that a lack of memory is an error here and not a
// SIGBUS later, and lies where the rank runs. The file can't be made shorter, has no name, and is gone with the last
// process that has it; a forked child does not inherit the mappings.
//
// Threads: reserve() one at a time; the rest, the end of segments included, from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/fork_guard.hpp"
#include "base/unique_fd.hpp"
#include "worker_runtime/backends/cpu/arrivals/control_block.hpp"
#include "worker_runtime/core/bootstrap/host_layout.hpp"

namespace ddp::cpu_backend {

using core::HostLayout;

// A range of memory that every rank has at the same place of its own part of a segment.
struct Placement {
  std::byte* in_first_part = nullptr;
  std::size_t stride_bytes = 0;  // from one part to the next
  std::uint64_t location = 0;    // the same number on every rank, never of another place

  std::byte* in_part_of(int rank) const { return in_first_part + static_cast<std::size_t>(rank) * stride_bytes; }
};

// Bytes [begin, end) of a part.
struct Gap {
  std::size_t begin = 0, end = 0;
};

class SharedMemory;

// One segment, mapped; its end unmaps it and gives the pages of this rank's part back.
class Segment : public std::enable_shared_from_this<Segment> {
 public:
  // Maps the segment at `offset` of the file. Throws std::system_error.
  Segment(std::shared_ptr<SharedMemory> memory, std::uint64_t offset, std::size_t bytes);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* part(int rank) const { return base_ + static_cast<std::size_t>(rank) * stride_bytes_; }
  std::byte* own_part() const;

  // This rank's part outlives the segment here, for others that still read it, and goes with the file.
  void keep_own_part() { keeps_own_part_ = true; }

  // Where [data, data + bytes) lies in this rank's part, or nothing.
  std::optional<Placement> place(const void* data, std::size_t bytes) const;

  // Whether `bytes` at a Placement::location are in each part, and where those of a rank are.
  bool has(std::uint64_t location, std::size_t bytes) const;
  std::byte* at(std::uint64_t location, int rank) const { return part(rank) + (location - offset_); }

 private:
  std::shared_ptr<SharedMemory> memory_;
  std::uint64_t offset_;
  std::size_t bytes_;
  std::size_t stride_bytes_;
  std::byte* base_ = nullptr;
  bool keeps_own_part_ = false;
};

class SharedMemory : public std::enable_shared_from_this<SharedMemory> {
 public:
  // A new file for the ranks of a host, with a zeroed control block. Throws std::system_error.
  static base::UniqueFd make_file(const HostLayout& layout, int host);

  // Maps the control block of a file that make_file() made, here or in another process; `rank` is the global one.
  // Throws std::system_error.
  SharedMemory(base::UniqueFd file, const HostLayout& layout, int rank);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::span<RankControl> control() const;  // of the ranks of this host

  // Of a group on several hosts, else empty: what is known of each rank of the group that is in trouble, by rank, and
  // memory in which the leader gathers a few words of every rank, by place in the layout.
  std::span<RankNote> notes() const;
  std::span<GatheredWords> gathered() const;

  // Whether the next segment can be expected to fit: reserving more memory than there is wakes the kernel's
  // out-of-memory killer, not an error. The gap counts for nothing, on any rank.
  struct Room {
    int error = 0;                                        // an errno if there is too little
    std::uint64_t needed_bytes = 0, available_bytes = 0;  // by all ranks of the host; 0 for a file that is too large
  };
  Room room_for(std::size_t bytes, Gap unused = {}) const;

  // The next segment, with this rank's part reserved, but for whole pages in a gap that nobody uses. Every rank calls
  // it in the same order with the same size, whether the call succeeds or not. Throws std::system_error.
  std::shared_ptr<Segment> reserve(std::size_t bytes, Gap unused = {});

  // Where [data, data + bytes) lies, if it is inside this rank's part of a segment.
  std::optional<Placement> find(const void* data, std::size_t bytes) const;

  // The segment that has them, which stays mapped as long as it is held; none where it is not mapped here any more.
  std::shared_ptr<const Segment> hold(std::uint64_t location, std::size_t bytes) const;

  const base::ForkGuard& fork_guard() const { return fork_guard_; }

 private:
  friend class Segment;
  void add(const Segment* segment);
  void remove(const Segment* segment);
  void punch(std::uint64_t offset, std::size_t bytes);

  base::ForkGuard fork_guard_;
  base::UniqueFd file_;
  int rank_;           // index among the ranks of this host
  int size_;           // their number
  int noted_count_;    // of the ranks of the group if they are on several hosts, else 0
  std::uint64_t end_;  // of the file, as far as it is given out; the same on all ranks
  std::size_t control_bytes_ = 0;
  std::byte* control_ = nullptr;
  mutable std::mutex mutex_;
  std::vector<const Segment*> segments_;  // guarded by mutex_; the living ones
};

}  // namespace ddp::cpu_backend
