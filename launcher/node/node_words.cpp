#include "launcher/node/node_words.hpp"

#include "base/host_and_port.hpp"
#include "base/printable.hpp"

namespace ddp::launcher {

using rendezvous::counted;
using rendezvous::describe_duration;

namespace {

constexpr const char* kOpeningTheStore = "opening the store of the job, which this node is to serve";

}  // namespace

std::string why_killed_text(const std::string& found_by) {
  return "it did not come to a collective in time" + (found_by.empty() ? "" : " (" + found_by + ")");
}

std::string all_workers(int workers) {
  return workers == 1 ? "the worker" : workers == 2 ? "both workers" : "all " + std::to_string(workers) + " workers";
}

std::string late_output_text(std::chrono::milliseconds waited) {
  return "the log files of this round are still not open after " + describe_duration(waited) +
         ", so its workers have not started: the disk of the log directory may not answer";
}

std::string late_reasons_text(std::chrono::milliseconds waited) {
  return "the error files and logs of failed workers are still not read after " + describe_duration(waited) +
         ", so what they say is not told: their disk may not answer";
}

std::string ranks_text(int rank_first, int workers) {
  const auto first = std::to_string(rank_first);
  return workers == 1 ? "rank " + first : "ranks " + first + " to " + std::to_string(rank_first + workers - 1);
}

std::string how_it_goes_on(int workers, int waiting, bool is_alone) {
  if (waiting > 0) {
    const auto rest = workers - waiting;
    return counted(waiting, "worker") + " of this node " + (waiting == 1 ? "goes" : "go") + " on" +
           (rest == 0 ? "" : ", " + std::to_string(rest) + " " + (rest == 1 ? "starts" : "start") + " again");
  }
  if (!is_alone) return "all nodes start their workers again";
  return all_workers(workers) + (workers == 1 ? " starts again" : " start again");
}

std::string restart_text(const rendezvous::StartRound& round, std::chrono::milliseconds restart_window) {
  const auto count = ", restart " + std::to_string(round.restart_count), most = std::to_string(round.restarts_max);
  if (restart_window.count() == 0) return count + " of " + most;
  return count + ", of at most " + most + " within " + describe_duration(restart_window);
}

std::string warning_text(int signal_number, const std::string& sender, int handlers, bool can_stop_at_step) {
  const auto signal = rendezvous::signal_name(signal_number) + sender;
  if (handlers == 0 && !can_stop_at_step)
    return signal + ": no worker of this node handles it, nor do all of them ask should_stop(): the job goes on";
  const auto to_those = handlers == 0 ? std::string()
                                      : "passed on to " + counted(handlers, "worker") +
                                            (handlers == 1 ? " that handles it" : " that handle it");
  return signal + ": " + to_those + (handlers > 0 && can_stop_at_step ? ", and " : "") +
         (can_stop_at_step ? "a warning to the workers, which ask should_stop()" : "");
}

std::string stop_text(int workers, bool is_idle, bool is_at_step, std::chrono::milliseconds grace) {
  if (is_idle) return "stopping";
  const auto limit = ", with SIGKILL after " + describe_duration(grace) + " or at a second signal";
  if (!is_at_step) return "stopping " + all_workers(workers) + limit;
  return all_workers(workers) + (workers == 1 ? " is" : " are") + " asked to stop at one step" + limit;
}

std::string step_text(int workers, std::uint64_t call) {
  return all_workers(workers) + (workers == 1 ? " stops" : " stop") + " at call " + std::to_string(call) +
         " of should_stop()";
}

std::string no_step_text(int workers, int signal_number, const std::string& why) {
  return "no one step for all" + (why.empty() ? "" : " (" + why + ")") + ": " + counted(workers, "worker") +
         (workers == 1 ? " gets " : " get ") + rendezvous::signal_name(signal_number) + " now";
}

std::string stopped_text(int workers) {
  return all_workers(workers) + " of this node " + (workers == 1 ? "is" : "are") + " stopped";
}

std::string text_of(LinkFault fault) {
  return fault == LinkFault::says_nonsense ? "it sent to ddprun what no version of libddp says"
                                           : "it does not read what ddprun tells it";
}

std::string link_lost_text(int rank, LinkFault fault) {
  return "rank " + std::to_string(rank) + ": " + text_of(fault) + "; it gets no new seat";
}

std::string spare_text(int nodes_max) {
  return "the job has the " + counted(nodes_max, "node") +
         " that it takes: this one is a spare, and waits until it is needed";
}

std::string signal_text(int signal_number, const std::string& sender, const std::string& what_follows) {
  return rendezvous::signal_name(signal_number) + sender + ": " + what_follows;
}

std::string time_over_text(std::chrono::milliseconds limit, const std::string& what_follows) {
  return "the time limit of " + describe_duration(limit) + " is over (--timeout): " + what_follows;
}

std::string next_round_text(const std::string& why, const std::string& how, const std::string& cost) {
  return why + ": " + how + cost;
}

std::string round_stopped_text(const std::string& why, int workers) { return why + ": " + stopped_text(workers); }

std::string failure_text(const rendezvous::FailureReport& failure, const std::string& host) {
  return describe_failure(failure) + " on host " + host + (failure.says_why() ? " (" + failure.message + ")" : "");
}

std::string still_looked_up_text(const std::string& endpoint_host) {
  return "the name " + endpoint_host + " is still being looked up";
}

std::string serves_without_address_text(const std::string& endpoint_host) {
  return "no interface of this host has the address of " + endpoint_host +
         ", but this is node rank 0 and nobody else serves the endpoint: it does";
}

std::string no_address_text(const std::string& why, const std::string& address_for_workers) {
  return why + (address_for_workers.empty() ? "" : "; workers of this node reach it at " + address_for_workers);
}

std::string serves_no_longer_text(const std::string& why) {
  return "this node does not serve the job any longer: " + why;
}

std::string no_standby_text(const std::string& why) {
  return "this node can't stand in for the endpoint's host: " + why;
}

std::string port_holder_text(const std::string& holder, int first, int last, bool is_of_several) {
  const auto ports = std::to_string(first) + (first == last ? "" : "-" + std::to_string(last));
  return "; " + holder + " has " + (is_of_several ? ports : "it");
}

std::string free_port_advice(const std::string& endpoint_host, bool is_of_several) {
  if (!is_of_several) return "another --master-port (--rdzv-endpoint), the same on all nodes";
  return "`--rdzv-backend=c10d --rdzv-endpoint=" + base::host_and_port(endpoint_host, "PORT") +
         "` with a port that is free there, the same on all nodes";
}

std::string round_text(const rendezvous::StartRound& round, int workers, const std::string& store_address) {
  return "round " + std::to_string(round.round.number) + ": node " + std::to_string(round.group_rank) + " of " +
         std::to_string(round.group_world_size) + ", " + ranks_text(round.rank_first, workers) + " of " +
         std::to_string(round.world_size) + ", store at " + store_address + ":" + std::to_string(round.master_port);
}

std::string error_text(const rendezvous::LinkLost& error) {
  return "error: " + base::printable(error.what) + "\nwhere: " + base::printable(error.where) +
         "\ntry:   " + base::printable(error.try_this);
}

std::string guardian_ended_text(const rendezvous::Ending& ending) { return "its guardian process " + describe(ending); }

rendezvous::LinkLost guardian_ended_error(const rendezvous::Ending& ending, std::int64_t pid, int workers,
                                          const std::string& host) {
  return {"ddprun's guardian process " + describe(ending) + "; " + all_workers(workers) +
              (workers == 1 ? " was" : " were") + " ended with it",
          "host " + host + ", pid " + std::to_string(pid),
          "find who sent it the signal: memory limits and `kill` reach every process of a job"};
}

rendezvous::LinkLost time_over_error(std::chrono::milliseconds limit, const std::string& host, bool has_run) {
  const auto over = "the time limit of " + describe_duration(limit) + " is over (--timeout), and ";
  if (has_run) return {over + "the endpoint is out of reach", "host " + host, "a longer --timeout"};
  return {over + "the job has not come together", "host " + host,
          "a longer --timeout, and ddprun on the other nodes within it"};
}

rendezvous::LinkLost survivors_error(const std::string& host) {
  return {"some processes of the job could not be killed: they hang in the kernel", "host " + host,
          "`ps -eo pid,stat,wchan,args | grep ' D'` shows them; they end when the kernel lets them"};
}

rendezvous::LinkLost strange_store_error() {
  return {"the endpoint wants the store to be open to more than the addresses of nodes", kOpeningTheStore,
          "find out what serves the endpoint: no ddprun or ddp-rendezvous wants that"};
}

rendezvous::LinkLost store_failed_error(const std::string& why) {
  return {why, kOpeningTheStore, "`--port-range=A-B` with free ports"};
}

rendezvous::LinkLost endpoint_taken_error(const std::string& what, const std::string& try_this) {
  return {what, "opening the endpoint of the job", try_this};
}

}  // namespace ddp::launcher
