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

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ddp/error.hpp"
#include "ddp/round.hpp"

namespace ddp::core {

// The value of a variable; empty where it is not set.
using Lookup = std::function<std::optional<std::string>(const char* name)>;

struct StoreAddress {
  std::string host;
  std::uint16_t port = 0;
};

struct PortRange {
  std::uint16_t min = 0;  // 0: any free port
  std::uint16_t max = 0;
};

// A store that no launcher serves, but rank 0 in its own process.
struct OwnStore {
  std::string job{};                 // whose it is, the same on all ranks and no other job's, "slurm 42.0"
  std::string host{};                // rank 0's, as ranks elsewhere reach it; empty where all are on one host
  bool is_here = false;              // rank 0 is on this host
  std::uint16_t first_port = 0;      // the first of this and ...
  int port_count = 1;                // ... so many in all that rank 0 finds free
  std::vector<std::string> nodes{};  // from where the others come, by name; may be empty
  bool is_slurm = false;             // which knows the addresses of these
  std::string rank_name{};           // the variable that said the rank
};

struct Launch {
  int rank = 0;
  int size = 1;
  int local_rank = 0;                 // -1, and ...
  int local_size = 1;                 // ... 0: not known before the ranks have met
  std::optional<StoreAddress> store;  // the launcher's
  std::optional<OwnStore> own_store;  // where it has none; both are empty for a group of one
  std::optional<RoundId> round;       // empty unless ddprun said it
  int restart_count = 0;              // torchrun's: how many times it has started these workers again
  PortRange ports;                    // to listen on for ranks of other hosts
  bool lets_any_read = false;         // DDP_PTRACE=any: see backends/cpu/memory/peer_memory.hpp
  std::string interface;              // whose address these reach; empty: that which leads to the store
};

constexpr int kSizeMax = 1'000'000;  // of a group; beyond it a variable is taken for garbage

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

// What every key of this round's ranks starts with. torchrun keeps one store over restarts: the prefix keeps the keys
// of an earlier start out of sight.
std::string store_key_prefix(const Launch& launch);

}  // namespace ddp::core
