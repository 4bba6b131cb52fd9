// Words for a shell, as a person would type them.
//
// Pure.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

namespace ddp::launcher {

// One word, quoted where a shell needs that.
inline std::string quoted_word(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("_-./=:,+@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

}  // namespace ddp::launcher
