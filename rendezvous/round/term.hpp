// Begins a term: the part of a round's id that grows from run to run.
#pragma once

#include <chrono>
#include <cstdint>

#include "ddp/round.hpp"

namespace ddp::rendezvous {

// Round 0 of a new term. Terms that begin later compare greater, within one second too: the second is the term, its
// fraction the upper half of the random part. The lower half stays random, for terms that begin at one instant.
RoundId begin_term(std::chrono::system_clock::time_point now, std::uint32_t random);

// The same, now. Throws Error where the system has no random bits.
RoundId begin_term();

}  // namespace ddp::rendezvous
