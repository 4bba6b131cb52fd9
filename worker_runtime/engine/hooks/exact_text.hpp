// A number as text from which it can be had back: for what ranks compare.
#pragma once

#include <array>
#include <cstdio>
#include <string>

namespace ddp::gradient_engine {

inline std::string exact_text(double number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.17g", number);
  return text.data();
}

}  // namespace ddp::gradient_engine
