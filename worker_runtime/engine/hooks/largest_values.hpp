// Selects the values of largest magnitude, such as the gradients that top_k sends.
//
// Pure. Three linear passes over the values: the first counts them by the leading bits of their magnitude, the second
// collects those with the threshold's leading bits to find the exact threshold, the third takes what reaches it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ddp::gradient_engine {

struct PlacedValue {
  std::uint32_t place = 0;  // among all
  float value = 0;
};

// Fills `largest`, in the order of places. Of equal magnitudes, lower places go first. NaN counts as infinite. Requires
// largest.size() <= values.size() < 2^32. `scratch` may be reused by the next call.
void take_largest(std::span<const float> values, std::span<PlacedValue> largest, std::vector<std::uint32_t>& scratch);

}  // namespace ddp::gradient_engine
