// What ddprun says to the user about the workers of this node.
//
// Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "rendezvous/membership/messages.hpp"

namespace ddp::launcher {

std::string all_workers(int workers);                 // "the worker", "both workers", "all 8 workers"
std::string ranks_text(int rank_first, int workers);  // "rank 3", "ranks 0 to 7"

// The log files of a round do not open.
std::string late_output_text(std::chrono::milliseconds waited);

// The files of failed workers can't be read.
std::string late_reasons_text(std::chrono::milliseconds waited);

// "both workers start again": what a new round means where `waiting` of this node's workers live on.
std::string how_it_goes_on(int workers, int waiting, bool is_alone);

// ", restart 2 of 3": what a new round has cost.
std::string restart_text(const rendezvous::StartRound& round, std::chrono::milliseconds restart_window);

// What became of a warning signal that was handed on: "SIGUSR1: passed on to 2 workers that handle it".
std::string warning_text(int signal_number, const std::string& sender, int handlers, bool can_stop_at_step);

// What a stop means for the workers: "stopping all 8 workers, with SIGKILL after 30 s or at a second signal".
std::string stop_text(int workers, bool is_idle, bool is_at_step, std::chrono::milliseconds grace);

// "all 8 workers stop at call 17 of should_stop()"
std::string step_text(int workers, std::uint64_t call);

// "no one step for all (rank 1 was killed by SIGKILL after 3 s on host a): 7 workers get SIGTERM now"
std::string no_step_text(int workers, int signal_number, const std::string& why);

}  // namespace ddp::launcher
