// What a checkpoint does with the state of a hook or an optimizer, without a file.
#pragma once

#include <ddp/parameter.hpp>

#include <cstring>
#include <string>
#include <vector>

namespace ddp::test {

// Returns what is different; empty: everything is copied.
inline std::string copy_state(const std::vector<Parameter>& from, const std::vector<Parameter>& to) {
  if (from.size() != to.size()) return std::to_string(from.size()) + " entries for " + std::to_string(to.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from[i].name != to[i].name || from[i].shape != to[i].shape) return from[i].name + " for " + to[i].name;
    std::memcpy(to[i].values.data, from[i].values.data, from[i].values.bytes());
  }
  return "";
}

}  // namespace ddp::test
