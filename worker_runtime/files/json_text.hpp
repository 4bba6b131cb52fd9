// A text as JSON, in quotes. What is not UTF-8 in it becomes U+FFFD, because readers refuse a whole file for it. Pure.
#pragma once

#include <string>
#include <string_view>

namespace ddp::files {

std::string json_text(std::string_view text);

// The same text, not in quotes, with the same replaced.
std::string valid_utf8(std::string_view text);

}  // namespace ddp::files
