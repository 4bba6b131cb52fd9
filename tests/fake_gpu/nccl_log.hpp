// The fake NCCL's log of errors, and the last of them, as NCCL has it: NCCL_DEBUG and NCCL_DEBUG_FILE say whether and
// where lines are written, by default to stdout, which is not flushed.
//
// Threads: any.
#pragma once

#include <string>

namespace ddp::fake_gpu {

// A line of the log, if wanted, and the text that ncclGetLastError() tells.
void set_last_error(const std::string& text);
std::string last_error_text();

}  // namespace ddp::fake_gpu
