// A named tensor of a model, in memory that the program owns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ddp/export.hpp"
#include "ddp/memory.hpp"

namespace ddp {
inline namespace DDP_ABI {

// A tensor with its name. It owns nothing: the memory stays the program's.
struct Parameter {
  std::string name;                 // unique in the model
  std::vector<std::int64_t> shape;  // row-major; its product is values.count
  MemoryRange values;               // on the group's device
};

}  // namespace DDP_ABI
}  // namespace ddp
