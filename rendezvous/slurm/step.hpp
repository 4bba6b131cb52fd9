// What the environment of a Slurm step's task says: which job and step, its nodes, and the task's place among the
// others.
//
// Pure: the variables come in through a function. Nothing is guessed: what is missing, malformed or contradictory is an
// InvalidArgument in three lines (what, where, try) that names the variable and its value.
//
// Source of the names: srun's manual page, "OUTPUT ENVIRONMENT VARIABLES".
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace ddp::slurm {

// The value of a variable; empty where it is not set.
using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

// What ddprun sets for its workers: the name of the step in which it runs itself. The SLURM_* that a worker inherits
// are ddprun's own, so whoever finds this and them to agree is no task of that step.
constexpr const char* kStepVariable = "DDPRUN_SLURM_STEP";

struct Step {
  std::string job{};                   // SLURM_JOB_ID: digits
  std::string step{};                  // SLURM_STEP_ID: digits
  int restart_count = 0;               // SLURM_RESTART_COUNT: how often the job was put back into the queue
  std::vector<std::string> nodes{};    // SLURM_STEP_NODELIST
  int node_index = 0;                  // SLURM_NODEID, of this one in `nodes`
  int tasks = 1;                       // of the step: SLURM_STEP_NUM_TASKS, else SLURM_NTASKS
  int task_rank = 0;                   // SLURM_PROCID
  int local_tasks = 1;                 // of this node, by SLURM_STEP_TASKS_PER_NODE ("2(x3),1")
  int local_rank = 0;                  // SLURM_LOCALID
  std::optional<int> cpus_per_task{};  // SLURM_CPUS_PER_TASK, which is there only where it was asked for
  std::optional<int> cpus_on_node{};   // SLURM_CPUS_ON_NODE
  std::optional<int> gpus_on_node{};   // SLURM_GPUS_ON_NODE

  bool operator==(const Step&) const = default;
};

// Empty where this is no step's task: in a batch or login shell, and where is_inherited(). Throws InvalidArgument also
// for a heterogeneous job, of which each component counts its nodes and tasks for itself.
std::optional<Step> step_of(const Lookup& variable);

// Whether the SLURM_* here are those of a ddprun further out, of which this is a worker or what a worker started.
bool is_inherited(const Lookup& variable);

// Whether RANK, MASTER_ADDR and all else that a launcher tells its workers is left over from a worker of another step,
// in which srun or sbatch started this one.
bool is_left_by_another_step(const Lookup& variable);

std::string name_of(const Step& step);    // "42.0"
std::string run_id_of(const Step& step);  // "42.0", and "42.0.r1" after it was put back into the queue once

struct Ports {
  std::uint16_t first = 0;
  int count = 0;
};

// The ports on which the tasks of this step meet, in the order in which they are tried. Two steps may well have the
// same.
Ports ports_of(const Step& step);

// The same for any job that has a number: one group of ports, below those that kernels and people take for other
// purposes, from 20000 to 31999.
Ports ports_of(std::uint64_t number);

}  // namespace ddp::slurm
