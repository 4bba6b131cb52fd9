#include "worker_runtime/process_group/environment.hpp"

#include <array>
#include <charconv>
#include <limits>

namespace ddp::process_group {

namespace {

constexpr std::array kNames{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};

[[noreturn]] void refuse(const std::string& what, const std::string& advice) {
  throw InvalidArgument(what +
                        "\nwhere: the environment of this process, read by init_process_group()\ntry:   " + advice);
}

std::string names_that_are_set(const Lookup& variable) {
  std::string names;
  for (const char* name : kNames) {
    if (variable(name)) names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return names;
}

std::string required(const Lookup& variable, const char* name) {
  if (auto value = variable(name)) return *value;
  refuse(std::string(name) +
             " is not set, but of the variables that go with it these are: " + names_that_are_set(variable),
         "start the program with ddprun or torchrun, which set all of them, or unset all for a single process");
}

struct Bounds {
  int min = 0;
  int max = 0;
};

int parse_decimal(const char* name, const std::string& text, Bounds bounds) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  const bool is_number = !text.empty() && text.front() != '-' && result.ec == std::errc{} && result.ptr == end;
  if (is_number && value >= bounds.min && value <= bounds.max) return value;
  refuse(std::string(name) + " is '" + text + "'",
         "a decimal number from " + std::to_string(bounds.min) + " to " + std::to_string(bounds.max));
}

int optional_decimal(const Lookup& variable, const char* name, Bounds bounds, int otherwise) {
  const auto text = variable(name);
  return text ? parse_decimal(name, *text, bounds) : otherwise;
}

StoreAddress store_from(const Lookup& variable) {
  StoreAddress store;
  store.host = required(variable, "MASTER_ADDR");
  if (store.host.empty()) refuse("MASTER_ADDR is empty", "the name or address of the host with the launcher's store");
  const Bounds ports{1, std::numeric_limits<std::uint16_t>::max()};
  store.port = static_cast<std::uint16_t>(parse_decimal("MASTER_PORT", required(variable, "MASTER_PORT"), ports));
  return store;
}

std::optional<RoundId> round_from(const Lookup& variable) {
  const auto text = variable("DDPRUN_ROUND_ID");
  if (!text) return std::nullopt;
  if (auto round = parse_round_id(*text)) return round;
  refuse("DDPRUN_ROUND_ID is '" + *text + "'",
         "leave it as ddprun set it, in the form 1763723112-9f3a17c2b4d8e6f0-3, or unset it");
}

void require_sense(const Launch& launch) {
  if (launch.local_rank >= launch.local_size) {
    refuse("LOCAL_RANK is " + std::to_string(launch.local_rank) + ", but LOCAL_WORLD_SIZE is " +
               std::to_string(launch.local_size),
           "LOCAL_RANK counts from 0 to LOCAL_WORLD_SIZE - 1");
  }
  if (launch.local_size <= launch.size) return;
  refuse(
      "LOCAL_WORLD_SIZE is " + std::to_string(launch.local_size) + ", but WORLD_SIZE is " + std::to_string(launch.size),
      "LOCAL_WORLD_SIZE counts the ranks of this host, WORLD_SIZE those of all hosts");
}

PortRange ports_from(const Lookup& variable) {
  const auto text = variable("DDPRUN_PORT_RANGE");
  if (!text) return {};
  const Bounds ports{1, std::numeric_limits<std::uint16_t>::max()};
  const auto dash = text->find('-');
  if (dash != std::string::npos) {
    const int min = parse_decimal("the first of DDPRUN_PORT_RANGE", text->substr(0, dash), ports);
    const int max = parse_decimal("the last of DDPRUN_PORT_RANGE", text->substr(dash + 1), ports);
    if (min <= max) return {static_cast<std::uint16_t>(min), static_cast<std::uint16_t>(max)};
  }
  refuse("DDPRUN_PORT_RANGE is '" + *text + "'", "two ports, as in 29500-29600");
}

}  // namespace

Launch launch_from(const Lookup& variable) {
  Launch launch;
  launch.round = round_from(variable);
  if (names_that_are_set(variable).empty()) return launch;

  launch.size = parse_decimal("WORLD_SIZE", required(variable, "WORLD_SIZE"), {1, kSizeMax});
  launch.rank = parse_decimal("RANK", required(variable, "RANK"), {0, kSizeMax - 1});
  if (launch.rank >= launch.size) {
    refuse("RANK is " + std::to_string(launch.rank) + ", but WORLD_SIZE is " + std::to_string(launch.size),
           "RANK counts from 0 to WORLD_SIZE - 1");
  }
  launch.store = store_from(variable);
  launch.local_size = optional_decimal(variable, "LOCAL_WORLD_SIZE", {1, kSizeMax}, launch.size);
  launch.local_rank = optional_decimal(variable, "LOCAL_RANK", {0, kSizeMax - 1}, launch.rank);
  launch.restart_count =
      optional_decimal(variable, "TORCHELASTIC_RESTART_COUNT", {0, std::numeric_limits<int>::max()}, 0);
  require_sense(launch);
  if (launch.local_size < launch.size) {
    launch.ports = ports_from(variable);
    launch.interface = variable("DDP_SOCKET_IFNAME").value_or("");
  }
  return launch;
}

std::string store_key_prefix(const Launch& launch) {
  return launch.round ? "ddp/round_" + to_string(*launch.round) + "/"
                      : "ddp/restart_" + std::to_string(launch.restart_count) + "/";
}

}  // namespace ddp::process_group
