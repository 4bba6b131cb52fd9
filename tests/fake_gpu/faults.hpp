// What is to go wrong, as text: "<call>:<nth>:<what>[:<number>]", separated by ';'. fake_gpu.h says what it means.
//
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::fake_gpu {

struct Fault {
  enum class Kind : std::uint8_t { none, return_code, sticky, async, hang, delay, die, die_inside };
  Kind kind = Kind::none;
  int number = 0;  // a code, or milliseconds
};

struct PlannedFault {
  std::string call;
  unsigned long nth = 1;
  bool and_later = false;
  Fault fault{};
};

// Throws std::invalid_argument, which quotes the entry.
std::vector<PlannedFault> parse_faults(std::string_view text);

// The first that is meant for this call; Kind::none where there is none.
Fault fault_for(const std::vector<PlannedFault>& planned, std::string_view call, unsigned long nth);

}  // namespace ddp::fake_gpu
