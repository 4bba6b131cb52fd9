// Completion scripts for shells, from the table of options.
//
// Each completes names of options, the words that an option takes, folders where one is wanted, and files from the
// program on.
#pragma once

#include <string>

namespace ddp::launcher {

// `shell`: bash, zsh or fish.
std::string completion_script(const std::string& shell);

}  // namespace ddp::launcher
