// This process's log for operators (base/event_log.hpp). DDP_LOG_LEVEL chooses the lines that go to stderr; by default
// none does. The newest lines of all levels are written to a file if a group fails (flight_recorder/failure_files.hpp).
//
// The caller never waits for stderr: a thread writes it. The thread starts with the first line for stderr, so there is
// none by default. Drop rule (base/line_writer.hpp): 1 MiB of lines wait; further lines are dropped, and a line tells
// how many. exit() waits up to 1 s for what is left; a process that ends otherwise may lose its newest lines.
//
// Threads: any. Fork: a forked child has its own log, and its own thread once it has a line to write.
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
