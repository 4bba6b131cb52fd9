// Hosts by which a machine means itself, as users write them; no name is looked up.
#pragma once

#include <algorithm>
#include <string>

#include "base/address.hpp"

namespace ddp::base {

inline bool is_loopback_host(const std::string& host) {
  constexpr const char* kName = "localhost";
  const auto is_same = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; };
  return std::equal(host.begin(), host.end(), kName, kName + 9, is_same) || host == "::1" ||
         (host.rfind("127.", 0) == 0 && host.find_first_not_of("0123456789.") == std::string::npos);
}

// An address in place of a loopback name: others may take `localhost` for ::1.
inline std::string with_loopback_address(const std::string& host) {
  return is_loopback_host(host) && !parse_address(host) ? "127.0.0.1" : host;
}

}  // namespace ddp::base
