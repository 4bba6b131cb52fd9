// How deep JSON is nested. The parser takes any depth, but copying or writing what it made needs stack for each level.
//
// Pure. Threads: any.
#pragma once

#include <cstddef>
#include <string_view>

namespace ddp::base {

// Whether `json` has more than `depth_max` lists and objects within each other. Of malformed text it tells only that
// of the part before the fault.
inline bool is_nested_deeper(std::string_view json, int depth_max) {
  // Text with few brackets can't be nested deeper. This search is fast: it looks at many bytes at once.
  int openings = 0;
  for (const char opening : {'[', '{'})
    for (auto at = json.find(opening); at != json.npos && openings <= depth_max; at = json.find(opening, at + 1))
      ++openings;
  if (openings <= depth_max) return false;
  int depth = 0;
  bool is_in_text = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (is_in_text) {
      if (c == '\\') ++i;
      is_in_text = c != '"';
    } else if (c == '[' || c == '{') {
      if (++depth > depth_max) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    } else {
      is_in_text = c == '"';
    }
  }
  return false;
}

}  // namespace ddp::base
