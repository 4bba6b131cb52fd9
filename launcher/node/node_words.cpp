#include "launcher/node/node_words.hpp"

namespace ddp::launcher {

using rendezvous::counted;
using rendezvous::describe_duration;

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

}  // namespace ddp::launcher
