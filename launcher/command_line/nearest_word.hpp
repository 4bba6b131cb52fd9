// Guesses what a mistyped word was meant to be.
#pragma once

#include <string_view>
#include <vector>

namespace ddp::launcher {

// The candidate that takes the fewest changes of a letter; empty where none comes close.
std::string_view nearest_word(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace ddp::launcher
