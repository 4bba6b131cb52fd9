// What each rank of a host shows with its phases: what it calls, where its memory is, and a few bytes of data.
//
// What is asked of all ranks is about one phase: of this rank's present one, once that is complete and before it
// arrives again.
//
// Threads: one at a time; own_call(), own_post(), calls() and last_call() also any other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "worker_runtime/backends/cpu/arrivals/control_block.hpp"

namespace ddp::cpu_backend {

class CallPosts {
 public:
  // `ranks` is the control block, which outlives this object.
  explicit CallPosts(std::span<RankControl> ranks) : ranks_(ranks), posted_(ranks.size()) {}

  // Shows what this rank calls next, before it arrives there; `address` is that of memory which others may read.
  void post(const Fingerprint& fingerprint, std::uint64_t address = 0);

  // What belongs to a call beside its post, at most kLineDataBytes: after post(), and before it arrives there.
  void put_data(const void* data, std::size_t bytes);

  // Writes all that into the line of the phase which this rank enters.
  void store(PhaseLine& line) const;

  // Which phase is present.
  void enter(std::uint64_t phase) { phase_ = phase; }

  // Whether all call the same, wherever their memory is; what they call; where the memory of one is; its data.
  bool all_call_the_same() const;
  const std::vector<Fingerprint>& posted();
  std::uint64_t location(int rank) const;
  std::uint64_t address(int rank) const;
  void get_data(int rank, void* data, std::size_t bytes) const;

  // What this rank posted last, whether it has arrived with that or not.
  std::uint64_t own_call() const { return call_; }
  Fingerprint own_post() const { return core::decode(words_); }

  // Calls made by a rank, and the last of them: a glance for messages, of any rank at any time.
  std::uint64_t calls(int rank) const;
  Fingerprint last_call(int rank) const;

 private:
  const PhaseLine& present_line(std::size_t rank) const { return ranks_[rank].line(phase_); }

  using LineData = std::array<std::uint64_t, std::tuple_size_v<decltype(PhaseLine::data)>>;

  std::span<RankControl> ranks_;
  std::uint64_t phase_ = 0;
  std::uint64_t call_ = 0;  // that this rank posted last, and what it is
  FingerprintWords words_{};
  std::uint64_t address_ = 0;
  LineData data_{};
  std::vector<Fingerprint> posted_;  // what posted() returns, kept so that no call allocates
};

}  // namespace ddp::cpu_backend
