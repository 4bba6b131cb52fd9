// The steps of optimizers, element by element.
//
// Pure but for the memory given; any thread.
#pragma once

#include <cstddef>

#include "ddp/sharded_optimizer.hpp"

namespace ddp::gradient_engine {

// Arrays of `count`; none overlaps another. scale: what the gradient is multiplied by first. step: from 1 on.
void update(const AdamWOptions& options, std::size_t step, float scale, float* p, const float* g, float* m, float* v,
            std::size_t count);
// m: null without momentum.
void update(const SgdOptions& options, std::size_t step, float scale, float* p, const float* g, float* m,
            std::size_t count);

}  // namespace ddp::gradient_engine
