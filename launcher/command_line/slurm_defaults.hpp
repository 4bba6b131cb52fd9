// What Slurm says in place of options that were not given, when ddprun is a task of one of its steps.
//
// Pure. What was given goes before all of it, be it on the command line or by DDPRUN_*; PET_* that contradict the step
// are an error, because they are more often left over from a site's profile than meant. docs/slurm.md has the rules.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/command_line/launch_config.hpp"
#include "rendezvous/slurm/step.hpp"

namespace ddp::launcher {

// What was taken from Slurm, and from which variable: "8 GPUs (SLURM_GPUS_ON_NODE=8)".
using SlurmFacts = std::vector<std::string>;

// The step that this process is a task of. Where its variables are wrong and the options say all that is needed of the
// meeting, they are left alone, with a notice; else this throws InvalidArgument in three lines.
struct SlurmPlace {
  std::optional<slurm::Step> step;
  bool in_step = false;  // also where its variables are wrong, and in a worker of another ddprun: its signals come
  bool in_job = false;   // also in a batch shell
  std::string
      for_workers;  // DDPRUN_SLURM_STEP: by which what a worker starts knows whose the SLURM_* are; may be empty
};
SlurmPlace slurm_place(const GivenOptions& given, const EnvironmentLookup& environment,
                       std::vector<std::string>& notices);

// What the step adds to the meeting of its nodes.
struct SlurmRendezvous {
  GivenOptions options;         // those that were given, and those that the step gives
  bool gives_endpoint = false;  // at any of the step's ports
  std::optional<bool> is_host;  // this node serves the endpoint, or another one of the step does
};
SlurmRendezvous slurm_rendezvous(const slurm::Step& step, const GivenOptions& given, std::vector<std::string>& notices,
                                 SlurmFacts& facts);

// The machine as the step's task may use it.
Machine slurm_machine(const slurm::Step& step, const EnvironmentLookup& environment, Machine machine,
                      SlurmFacts& facts);

// The time from Slurm's SIGTERM to its SIGKILL, less what it takes to tell the others: by KillWait in slurm.conf.
std::chrono::seconds slurm_grace(const EnvironmentLookup& environment, const Machine& machine, SlurmFacts& facts);

// Why all workers share one core.
std::string slurm_one_core_text(const slurm::Step& step, int workers);

// A setting of srun's that does not go with nodes that may fail; empty: none.
std::string slurm_kill_text(const slurm::Step& step, const RendezvousConfig& rendezvous,
                            const EnvironmentLookup& environment);

}  // namespace ddp::launcher
