// What became of a run, round by round, in words: for the console, and what ended each round for the report file.
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/membership/messages.hpp"

namespace ddp::launcher {

constexpr const char* kNextRoundBegan = "the next round began";  // of a round of which nobody says what ended it

// At most ten lines, however many rounds there were; the last one has no newline at its end.
std::string run_summary(const rendezvous::RunReport& report, const rendezvous::FinishJob& verdict);

// What ended each round of the report; none is empty. The job's verdict ended the last one.
std::vector<std::string> round_ends(const rendezvous::RunReport& report, const rendezvous::FinishJob& verdict);

}  // namespace ddp::launcher
