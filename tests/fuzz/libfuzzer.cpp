// One target as a program of libFuzzer.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddp::fuzz::DDP_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
