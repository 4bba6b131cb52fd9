// The text of --help and the man page, both from the table of options.
#pragma once

#include <string>

namespace ddp::launcher {

std::string help_text();
std::string man_page(const std::string& version);  // troff with the man macros

}  // namespace ddp::launcher
