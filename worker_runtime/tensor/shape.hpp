// What a shape says: how many elements there are, and the text of it for messages.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddp::tensor {

// The product of the extents, 1 for a scalar. Empty where an extent is negative, or where the product overflows.
std::optional<std::size_t> element_count(const std::vector<std::int64_t>& shape);

// "[2, 3]"
std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace ddp::tensor
