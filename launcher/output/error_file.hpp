// The file in which a worker may leave the reason of its failure (TORCHELASTIC_ERROR_FILE), in the form that PyTorch's
// @record writes: {"message": {"message": "RuntimeError: ...", "extraInfo": {...}}}, or {"message": "..."}.
#pragma once

#include <string>

namespace ddp::launcher {

// The message, its first line and at most a few hundred bytes; empty where there is no such file or no such message.
std::string read_error_file(const std::string& path);

// The same of the file's text. Pure.
std::string error_message_of(const std::string& json_text);

// What is known of the worker that failed first.
struct RootCause {
  std::string error_file;   // that the worker may have written; empty: none
  int exit_code = 1;        // the worker's; of one that a signal ended the negative number of it, as in PyTorch
  std::string description;  // where the worker wrote nothing
};

// Leaves the root cause in `path`, for the launcher that started this one and gave it that name: the worker's own file
// with `errorCode` in its message, or the description in the same form. False where it can't be written.
bool pass_error_on(const RootCause& cause, const std::string& path);

// The text for that, of the text of the worker's file. Pure.
std::string error_file_for_caller(const std::string& json_text, const RootCause& cause, long unix_seconds);

}  // namespace ddp::launcher
