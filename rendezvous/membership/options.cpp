#include "rendezvous/membership/options.hpp"

namespace ddp::rendezvous {

void take_settings(MembershipOptions& options, const Hello& hello) {
  options.nodes_min = hello.nodes_min;
  options.nodes_max = hello.nodes_max;
  options.restarts_max = hello.restarts_max;
  options.restart_window = hello.restart_window;
  options.join_timeout = hello.join_timeout;
  options.last_call_timeout = hello.last_call_timeout;
  options.nodes_heartbeat_timeout = hello.heartbeat_timeout;
}

MembershipOptions options_of(const Hello& hello, RoundId term, const JobBefore& before) {
  MembershipOptions options;
  options.run_id = hello.run_id;
  options.slurm_run = hello.slurm_run;
  take_settings(options, hello);
  options.term = term;
  options.before = before;
  const auto& last = before.last_round;
  if (last.term >= term.term && last != RoundId{}) options.term.term = last.term + 1;
  return options;
}

}  // namespace ddp::rendezvous
