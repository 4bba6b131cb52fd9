// What ranks tell each other before a sync of elastic state, and the choice of the rank whose state all ranks take.
//
// Pure: no group and no device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ddp/round.hpp"

namespace ddp::elastic {

// The newest commit of one rank, and the layout of its state.
struct Offer {
  std::uint64_t has_commit = 0;
  RoundId round;            // in which the commit was made
  std::uint64_t count = 0;  // of commits
  std::uint64_t entries = 0, bytes = 0, layout = 0;
  RoundId last_synced;  // the round of the last sync, if there is a commit

  static constexpr std::size_t kWords = 11;
  using Words = std::array<std::int64_t, kWords>;

  Words words() const;
  static Offer from(const std::int64_t* words);

  // Whether both states have the same layout.
  bool fits(const Offer& other) const;
};

// The rank whose state all ranks take; offers[r] is of rank r. The lowest of equal ranks.
//
// In host memory it is the rank with the newest commit. On GPUs only ranks of the last round count, and among these the
// rank with the oldest commit: a rank that aborts a collective may let its neighbours' collectives end with wrong
// bytes. A neighbour may commit these bytes before it hears of the failure. The rank that aborted has not made this
// commit. The cost is one step.
int source_of(std::span<const Offer> offers, bool on_gpus);

}  // namespace ddp::elastic
