// This process's log for operators (base/event_log.hpp). DDP_LOG_LEVEL chooses the lines that go to stderr; by default
// none does. The newest lines of all levels are written to a file if a group fails (flight_recorder/failure_files.hpp).
//
// A line that stderr cannot take at once is dropped: the caller never waits for a reader.
//
// Threads: any. Fork: a forked child has its own log.
#pragma once

#include <string>

#include "base/event_log.hpp"

namespace ddp::process_log {

// Sets the rank that further lines carry.
void set_rank(int rank) noexcept;

void log(const base::LogEvent& event) noexcept;

// The newest lines of all levels, up to 256 KiB. Empty if there is not enough memory.
std::string kept() noexcept;

}  // namespace ddp::process_log
