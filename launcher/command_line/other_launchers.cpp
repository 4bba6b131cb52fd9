#include "launcher/command_line/other_launchers.hpp"

#include <algorithm>
#include <initializer_list>

namespace ddp::launcher {
namespace {

struct Habit {
  std::initializer_list<std::string_view> names;
  std::string_view instead;
};

constexpr std::string_view kWorkers = "`--nproc-per-node=N`: ddprun counts the workers of each node, not of the job";
constexpr std::string_view kHosts = "`--hosts=node0:4,node1:4`, or `--hostfile=FILE`";
constexpr std::string_view kExportAdvice =
    "`export NAME=VALUE` before ddprun: workers inherit its environment; on other hosts `-x NAME=VALUE`";
constexpr std::string_view kNeedless = "leave it out: ddprun needs nothing of the kind";

// Sources: the manuals of Open MPI's and MPICH's mpirun, of srun, accelerate launch, deepspeed and horovodrun.
const Habit kHabits[] = {
    {{"n", "np", "ntasks", "ntasks-per-node", "num-processes", "num-proc", "num-gpus", "gpus", "gpus-per-node", "ngpus",
      "ppn", "npernode", "tasks-per-node", "nproc-per-host"},
     kWorkers},
    {{"H", "host", "host-file", "hostlist", "machinefile", "machine-file", "nodelist", "include"}, kHosts},
    {{"N", "nodes", "num-nodes", "num-machines"}, "`--nnodes=N`, the same on each node"},
    {{"machine-rank", "node-id"}, "`--node-rank=N`"},
    {{"main-process-ip"}, "`--master-addr=HOST`"},
    {{"main-process-port"}, "`--master-port=PORT`"},
    {{"genv", "env"}, kExportAdvice},
    {{"bind-to", "cpu-bind", "map-by"}, "`--numa-binding=node`, or socket, exclusive, core-complex"},
    {{"tag-output", "output-filename", "output", "error"}, "`--log-dir=DIR --tee=3` writes files and shows the output"},
    {{"use-env", "multi-gpu", "allow-run-as-root", "oversubscribe"}, kNeedless},
};

}  // namespace

std::optional<std::string> instead_of(std::string_view name) {
  for (const auto& habit : kHabits)
    if (std::find(habit.names.begin(), habit.names.end(), name) != habit.names.end()) return std::string(habit.instead);
  return {};
}

}  // namespace ddp::launcher
