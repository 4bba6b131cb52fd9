// Text from elsewhere, as it may stand inside a line of ours: no byte of it moves the cursor, begins another line,
// changes the terminal or the order in which the rest of the line is shown.
//
// Escaped are control characters (C0, DEL, C1), the line and paragraph separators U+2028 and U+2029, the controls of
// bidirectional text, characters that take no room on the screen (zero width spaces and joiners, tags, fillers), with
// which two names could look alike, and bytes that are not UTF-8: "\n", "\x1b", "\u202e", "\U000e0041". A tab becomes a
// space. A backslash stays, so text that is printable already stays as it is.
//
// Source: Unicode 15, Default_Ignorable_Code_Point, but for variation selectors: emoji have them.
//
// Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddp::base {

// A result of more than `bytes_max` bytes is cut between two characters and ends with "...". Requires bytes_max >= 3.
std::string printable(std::string_view text, std::size_t bytes_max = std::string::npos);

// Whether printable(text) is `text`.
bool is_printable(std::string_view text);

}  // namespace ddp::base
