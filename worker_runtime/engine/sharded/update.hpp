// The steps of optimizers, element by element.
//
// Pure but for the memory given; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>

#include "ddp/memory.hpp"
#include "ddp/sharded_optimizer.hpp"
#include "worker_runtime/tensor/optimizer_numbers.hpp"

namespace ddp::gradient_engine {

// Of the same elements; no array overlaps another.
struct Elements {
  float* p;
  const float* g;
  float* m;  // null without momentum
  float* v;  // null but for AdamW
  std::size_t count;
};

// scale: what the gradient is multiplied by first. step: from 1 on.
tensor::AdamWNumbers numbers_of(const AdamWOptions& options, std::size_t step, float scale);
tensor::SgdNumbers numbers_of(const SgdOptions& options, std::size_t step, float scale);

// scale: what the gradient is multiplied by first. step: from 1 on.
void update(const std::variant<AdamWOptions, SgdOptions>& options, std::size_t step, float scale,
            const Elements& elements);

// Parameters and gradients of 16 bits.
struct HalfElements {
  DataType type;
  std::uint16_t* p;
  const std::uint16_t* g;
};

// Updates the masters, which are the p of `elements` (its g is not used), and rounds them to the parameters.
void update(const std::variant<AdamWOptions, SgdOptions>& options, std::size_t step, float scale,
            const Elements& elements, const HalfElements& half);

}  // namespace ddp::gradient_engine
