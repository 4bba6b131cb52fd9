// What a process knows of itself and its group before it has met the other ranks. The environment says it
// (environment.hpp), or the program (BootstrapOptions).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddp/bootstrap.hpp"
#include "ddp/round.hpp"

namespace ddp::core {

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
  int local_rank = 0;                  // -1, and ...
  int local_size = 1;                  // ... 0: not known before the ranks have met
  std::optional<StoreAddress> store;   // the launcher's
  std::optional<OwnStore> own_store;   // where it has none
  std::shared_ptr<Store> given_store;  // the program's; all three are empty for a group of one
  std::optional<std::string> name;     // the program's, of the group; empty: the environment says who this is
  std::optional<RoundId> round;        // empty unless ddprun said it
  int restart_count = 0;               // torchrun's: how many times it has started these workers again
  PortRange ports;                     // to listen on for ranks of other hosts
  bool lets_any_read = false;          // DDP_PTRACE=any: see backends/cpu/memory/peer_memory.hpp
  std::string interface;               // whose address these reach; empty: that which leads to the store

  // Whether the ranks are those of the launcher. A program may make further groups, with ranks of their own.
  bool is_of_launcher() const { return !name || round; }
};

constexpr int kSizeMax = 1'000'000;  // of a group; beyond it a variable is taken for garbage

// What every key of this round's ranks starts with. torchrun keeps one store over restarts: the prefix keeps the keys
// of an earlier start out of sight.
std::string store_key_prefix(const Launch& launch);

// Pure. Throws InvalidArgument for options that are out of range or contradict each other.
Launch launch_from(const BootstrapOptions& options);

}  // namespace ddp::core
