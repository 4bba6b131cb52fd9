// Man pages, in troff with the man macros.
#pragma once

#include <string>
#include <string_view>

namespace ddp::base {

// Escapes dashes, backslashes, and a control character at the start of a line.
std::string for_troff(std::string_view text);

// The man page of a program whose options are described by CLI11's text of --help. `purpose` is one line without a dot
// at its end.
std::string man_page(const std::string& program, const std::string& purpose, const std::string& version,
                     const std::string& help);

}  // namespace ddp::base
