// What ddp-bench measures with, the same on all ranks.
#pragma once

#include <cstddef>

namespace ddp::bench {

struct Settings {
  std::size_t parameters = 10'000'000;  // of the model, about; float32
  std::size_t batch = 16;               // samples per rank and step
  std::size_t steps = 20;               // that are measured
  std::size_t barriers = 500;           // that are measured
};

}  // namespace ddp::bench
