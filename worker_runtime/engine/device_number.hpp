// A number where a group's collectives take it: on the group's device.
//
// Threads: as the group.
#pragma once

#include "ddp/memory.hpp"
#include "ddp/process_group.hpp"

namespace ddp::gradient_engine {

template <class Number>
class DeviceNumber {
 public:
  // The same memory in each call, of any value at first. On a GPU the first call is collective: it allocates.
  MemoryRange in(ProcessGroup& group, CollectiveOptions options) {
    constexpr DataType type = DataTypeOf<Number>::value;
    if (group.device().kind == Device::Kind::cpu) return {&on_host_, 1, type};
    if (on_gpu_.data() == nullptr) on_gpu_ = group.allocate(sizeof(Number), options);
    return {on_gpu_.data(), 1, type, group.device()};
  }

 private:
  Number on_host_{};
  RegisteredMemory on_gpu_;
};

}  // namespace ddp::gradient_engine
