// What ddprun says to the user about the workers of this node, and about the endpoint of its job.
//
// Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "rendezvous/link/link_lost.hpp"
#include "rendezvous/membership/messages.hpp"

namespace ddp::launcher {

constexpr const char* kOrphansHang = "processes that the worker before it has left can't be killed";
constexpr const char* kLogDiskIsSlow =
    "the disk of the log files is slow; what is left is written while the job goes on";
constexpr const char* kNoSuspension =
    "ctrl-z suspends no job of several nodes: the others would take this one for dead";

// Said of a node that is told to stop.
constexpr const char* kLeavesIfItCan = "; the job goes on if enough other nodes are left (--on-node-stop=leave)";
constexpr const char* kHasLeft = "this node has left the job, which goes on without it";

// Why ddprun killed a worker that a collective's deadline found missing; `found_by`: what the rank said that waited for
// it, with the collective, its number and the deadline, or empty.
std::string why_killed_text(const std::string& found_by);

// Why the socket between ddprun and a worker was given up.
enum class LinkFault { says_nonsense, does_not_read };

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

// "all 8 workers of this node are stopped"
std::string stopped_text(int workers);

std::string text_of(LinkFault fault);

// "rank 3: it does not read what ddprun tells it; it gets no new seat"
std::string link_lost_text(int rank, LinkFault fault);

std::string spare_text(int nodes_max);

// "SIGTERM: stopping both workers, ...", by whom included.
std::string signal_text(int signal_number, const std::string& sender, const std::string& what_follows);

// "the time limit of 60 s is over (--timeout): stopping both workers, ..."
std::string time_over_text(std::chrono::milliseconds limit, const std::string& what_follows);

// "rank 1 was killed by SIGKILL after 3 s: both workers start again, restart 1 of 3"
std::string next_round_text(const std::string& why, const std::string& how, const std::string& cost);

// "rank 1 was killed by SIGKILL after 3 s: both workers of this node are stopped"
std::string round_stopped_text(const std::string& why, int workers);

// "rank 1 was killed by SIGKILL after 3 s on host a (out of memory)"
std::string failure_text(const rendezvous::FailureReport& failure, const std::string& host);

// What becomes of the endpoint here.
std::string still_looked_up_text(const std::string& endpoint_host);
std::string serves_without_address_text(const std::string& endpoint_host);
std::string no_address_text(const std::string& why, const std::string& address_for_workers);
std::string serves_no_longer_text(const std::string& why);
std::string no_standby_text(const std::string& why);

// "; pid 7 (python3) has it"; of one of several ports: "; pid 7 (python3) has 29400-29402".
std::string port_holder_text(const std::string& holder, int first, int last, bool is_of_several);

// What to try where no port of the endpoint is free.
std::string free_port_advice(const std::string& endpoint_host, bool is_of_several);

// "round 2: node 1 of 2, ranks 8 to 15 of 16, store at host:29500"
std::string round_text(const rendezvous::StartRound& round, int workers, const std::string& store_address);

// Errors of three parts.
std::string error_text(const rendezvous::LinkLost& error);          // as the user reads it
std::string guardian_ended_text(const rendezvous::Ending& ending);  // for the other nodes
rendezvous::LinkLost guardian_ended_error(const rendezvous::Ending& ending, std::int64_t pid, int workers,
                                          const std::string& host);
rendezvous::LinkLost time_over_error(std::chrono::milliseconds limit, const std::string& host, bool has_run);
rendezvous::LinkLost survivors_error(const std::string& host);
rendezvous::LinkLost strange_store_error();
rendezvous::LinkLost store_failed_error(const std::string& why);
rendezvous::LinkLost endpoint_taken_error(const std::string& what, const std::string& try_this);

}  // namespace ddp::launcher
