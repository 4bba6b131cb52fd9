// Reads from a worker's environment who it is and where it meets the others, as ddprun and torchrun tell it.
//
// Pure: the variables come in through a function, so tests need no environment. Nothing is guessed: what is missing,
// malformed or contradictory is an InvalidArgument that names the variable, its value and what would be right.
//
// Source of the names: torchrun's documentation, "Environment Variables".
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "ddp/error.hpp"
#include "ddp/round.hpp"

namespace ddp::process_group {

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

struct Launch {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::optional<StoreAddress> store;  // empty for a process that nobody launched: a group of one
  std::optional<RoundId> round;       // empty unless ddprun said it
  int restart_count = 0;              // torchrun's: how many times it has started these workers again
  PortRange ports;                    // to listen on for ranks of other hosts
  std::string interface;              // whose address these reach; empty: that which leads to the store
};

constexpr int kSizeMax = 1'000'000;  // of a group; beyond it a variable is taken for garbage

// Requires RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, unless none of these and LOCAL_RANK and LOCAL_WORLD_SIZE is
// set. LOCAL_RANK and LOCAL_WORLD_SIZE default to RANK and WORLD_SIZE. DDPRUN_PORT_RANGE ("29500-29600") and
// DDP_SOCKET_IFNAME are read where the ranks are on several hosts. Throws InvalidArgument.
Launch launch_from(const Lookup& variable);

// What every key of this round's ranks starts with. torchrun keeps one store over restarts: the prefix keeps the keys
// of an earlier start out of sight.
std::string store_key_prefix(const Launch& launch);

}  // namespace ddp::process_group
