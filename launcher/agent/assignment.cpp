#include "launcher/agent/assignment.hpp"

namespace ddp::launcher {

Assignment assignment_of(const rendezvous::StartRound& round, const LaunchConfig& config, const std::string& run_id,
                         const std::string& master_address) {
  Assignment out;
  out.round = round.round;
  out.workers = config.workers;
  out.rank_first = round.rank_first;
  out.world_size = round.world_size;
  out.group_rank = round.group_rank;
  out.group_world_size = round.group_world_size;
  out.role = config.role;
  out.role_rank_first = round.role_rank_first;
  out.role_world_size = round.role_world_size;
  out.restart_count = round.restart_count;
  out.restarts_max = round.restarts_max;
  out.run_id = run_id;
  out.master_address = master_address;
  out.master_port = round.master_port;
  out.stop_signals = config.stop_signals;
  out.virtual_local_rank = config.virtual_local_rank;
  out.port_first = config.rendezvous.port_first;
  out.port_last = config.rendezvous.port_last;
  out.slurm_step = config.slurm_step;
  return out;
}

}  // namespace ddp::launcher
