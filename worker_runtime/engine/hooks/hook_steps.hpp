// Counts the steps of a hook over the end of a process: its number goes into checkpoints.
#pragma once

#include <cstdint>
#include <optional>

#include "ddp/memory.hpp"

namespace ddp::gradient_engine {

class HookSteps {
 public:
  // step: HookCall::step of a bucket that begins.
  void note(std::uint64_t step) {
    if (last_ != step) ++number_;
    last_ = step;
  }

  std::int64_t number() const { return number_; }  // of the step under way; the first is 0
  MemoryRange memory() { return {&number_, 1, DataType::int64}; }

 private:
  std::int64_t number_ = -1;
  std::optional<std::uint64_t> last_;
};

}  // namespace ddp::gradient_engine
