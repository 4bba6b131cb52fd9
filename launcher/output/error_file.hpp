// The file in which a worker may leave the reason of its failure (TORCHELASTIC_ERROR_FILE), as PyTorch's @record writes it:
// {"message": {"message": "RuntimeError: ...", "extraInfo": {...}}}, or {"message": "..."}.
#pragma once

#include <string>

namespace ddp::launcher {

// The message, its first line and at most a few hundred bytes; empty where there is no such file or no such message.
std::string read_error_file(const std::string& path);

// The same of the file's text. Pure.
std::string error_message_of(const std::string& json_text);

}  // namespace ddp::launcher
