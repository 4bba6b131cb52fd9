// A secret that nobody can guess, as text.
#pragma once

#include <sys/random.h>

#include <array>
#include <string>
#include <string_view>

#include "base/throw_errno.hpp"

namespace ddp::base {

// 128 random bits as 32 hexadecimal digits. Throws std::system_error.
inline std::string random_key() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    base::throw_errno("random bits for a key");
  std::string out;
  for (const unsigned char byte : bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

// Whether it has the form of one.
inline bool is_random_key(std::string_view text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace ddp::base
