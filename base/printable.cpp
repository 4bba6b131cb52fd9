#include "base/printable.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>

namespace ddp::base {
namespace {

constexpr std::string_view kCut = "...";

// Printable ASCII, as nearly all text is.
bool is_plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

// The first character of a text; one byte that is not UTF-8 has no code.
struct Character {
  std::size_t length = 1;
  bool is_utf8 = false;
  std::uint32_t code = 0;
};

// Requires a text that is not empty. Source: RFC 3629, section 4.
Character first_character(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto first = byte(0);
  if (first < 0x80) return {1, true, first};
  const std::size_t length = first >= 0xc2 && first <= 0xdf   ? 2
                             : first >= 0xe0 && first <= 0xef ? 3
                             : first >= 0xf0 && first <= 0xf4 ? 4
                                                              : 1;
  if (length == 1 || text.size() < length) return {};
  std::uint32_t code = first & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fu);
  }
  const bool is_overlong = code < (length == 3 ? 0x800u : length == 4 ? 0x10000u : 0x80u);
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  if (is_overlong || is_surrogate || code > 0x10ffff) return {};
  return {length, true, code};
}

bool is_escaped(std::uint32_t code) {
  const auto is_between = [code](std::uint32_t low, std::uint32_t high) { return low <= code && code <= high; };
  return code < 0x20 || is_between(0x7f, 0x9f) ||                             // C0, DEL, C1
         code == 0xad || code == 0x34f || code == 0x61c || code == 0x180e ||  // soft hyphen, joiner, marks
         is_between(0x115f, 0x1160) || code == 0x3164 || code == 0xffa0 ||    // fillers of Hangul
         is_between(0x200b, 0x200f) || is_between(0x2028, 0x202e) ||          // zero width, separators, embeddings
         is_between(0x2060, 0x206f) || code == 0xfeff ||                      // invisible operators, isolates
         is_between(0xfff9, 0xfffb) || is_between(0xe0000, 0xe0fff);          // annotations, tags
}

// How the first character is shown.
std::string shown(std::string_view text, const Character& character) {
  if (character.is_utf8 && !is_escaped(character.code)) return std::string(text.substr(0, character.length));
  switch (character.is_utf8 ? character.code : 0u) {
    case '\t': return " ";
    case '\n': return "\\n";
    case '\r': return "\\r";
    default: break;
  }
  char out[12];
  if (character.length == 1)
    std::snprintf(out, sizeof out, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(text.front())));
  else
    std::snprintf(out, sizeof out, character.code > 0xffff ? "\\U%08x" : "\\u%04x",
                  static_cast<unsigned>(character.code));
  return out;
}

}  // namespace

std::string printable(std::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max && is_plain(text)) return std::string(text);
  std::string out;
  std::size_t length_if_cut = 0;
  while (!text.empty()) {
    const auto character = first_character(text);
    out += shown(text, character);
    text.remove_prefix(character.length);
    if (out.size() > bytes_max) return out.substr(0, length_if_cut).append(kCut);
    if (out.size() <= bytes_max - kCut.size()) length_if_cut = out.size();
  }
  return out;
}

bool is_printable(std::string_view text) {
  if (is_plain(text)) return true;
  while (!text.empty()) {
    const auto character = first_character(text);
    if (!character.is_utf8 || is_escaped(character.code)) return false;
    text.remove_prefix(character.length);
  }
  return true;
}

}  // namespace ddp::base
