// One rank of a measurement, in the environment that ddprun gives it.
#pragma once

#include <optional>

#include "bench/result.hpp"
#include "bench/settings.hpp"

namespace ddp::bench {

// Collective: meets the other ranks, trains, and compares the parameters of all ranks at the end. Returns the
// result on rank 0, and nothing on other ranks. Throws what libddp throws.
std::optional<Result> measure_as_rank(const Settings& settings);

}  // namespace ddp::bench
