// Reads from a worker's environment who it is and where it meets the others, whoever started it: ddprun, torchrun, a
// person or a script by PyTorch's names, Open MPI's mpirun, that of MPICH (Hydra), Slurm's srun, or SageMaker.
//
// Pure: the variables come in through a function, so tests need no environment. Nothing is guessed: what is missing,
// malformed or contradictory is an InvalidArgument that names the variable, its value and what would be right.
//
// Source of the names: torchrun's documentation, "Environment Variables"; Open MPI's FAQ, "What environment variables
// are set"; MPICH's Hydra, as it is seen to set them; rendezvous/slurm/step.hpp; PyTorch's documentation, "Environment
// variable initialization"; the SageMaker Training Toolkit's "ENVIRONMENT_VARIABLES.md"; PBS's and LSF's man pages of
// qsub and bsub.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "worker_runtime/core/bootstrap/launch.hpp"

namespace ddp::core {

// The value of a variable; empty where it is not set.
using Lookup = std::function<std::optional<std::string>(const char* name)>;

// What started this process together with the others of its host, by a name that no other such process on this host has
// had since it booted. Asked of only where the environment has no name for the job.
using NameOfStarter = std::function<std::string()>;

// The contents of a file; empty where it can't be read.
using ReadFile = std::function<std::string(const std::string& path)>;

// By the first of these that is there: torchrun's names, Open MPI's (OMPI_COMM_WORLD_*), Hydra's (PMI_*, MPI_LOCAL*),
// those of a Slurm step, SageMaker's (SM_*). Where none is there it is a group of one. Torchrun's are passed over where
// another step's worker left them, or one of ddprun's that called mpirun.
//
// Of torchrun's, requires RANK, WORLD_SIZE, and for more than one rank MASTER_ADDR and MASTER_PORT. These say where
// rank 0 serves the store, or somebody else does (TORCHELASTIC_USE_AGENT_STORE=True, as torchrun and ddprun set it).
// With the other launchers' names they may be missing: then it is the first node of the step, or of the job of PBS or
// LSF (PBS_NODEFILE, LSB_DJOB_HOSTFILE, LSB_MCPU_HOSTS), or this host where all ranks are on it. DDPRUN_PORT_RANGE
// ("29500-29600") and DDP_SOCKET_IFNAME are read where the ranks may be on several hosts; DDP_PTRACE always. Throws
// InvalidArgument.
Launch launch_from(const Lookup& variable, const NameOfStarter& name_of_starter, const ReadFile& read_file);

// The same variables, less those that ddprun made for a worker of another step, which called srun or sbatch; or for one
// that called mpirun: ddprun hands no names of an outer mpirun to its workers, so where both are, mpirun is further in.
Lookup without_leftovers(Lookup variable);

}  // namespace ddp::core
