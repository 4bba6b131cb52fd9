#include "worker_runtime/core/bootstrap/launch.hpp"

#include "ddp/error.hpp"

namespace ddp::core {

namespace {

[[noreturn]] void refuse_option(const std::string& what, const std::string& advice) {
  throw InvalidArgument("init_process_group: " + what + "\nwhere: BootstrapOptions\ntry:   " + advice);
}

std::string number(const std::optional<int>& value) { return value ? std::to_string(*value) : "missing"; }

void check_ranks(const BootstrapOptions& options) {
  if (options.size < 1 || options.size > kSizeMax) {
    refuse_option("a size of " + std::to_string(options.size),
                  "a number of ranks from 1 to " + std::to_string(kSizeMax));
  }
  if (options.rank < 0 || options.rank >= options.size) {
    refuse_option("rank " + std::to_string(options.rank) + " of " + std::to_string(options.size),
                  "a rank from 0 to " + std::to_string(options.size - 1));
  }
  if (!options.local_rank && !options.local_size) return;
  const int local_size = options.local_size.value_or(0);
  const int local_rank = options.local_rank.value_or(-1);
  if (local_rank < 0 || local_rank >= local_size || local_size > options.size || local_rank > options.rank) {
    refuse_option("local_rank " + number(options.local_rank) + ", local_size " + number(options.local_size) +
                      " for rank " + std::to_string(options.rank) + " of " + std::to_string(options.size),
                  "0 <= local_rank < local_size <= size and local_rank <= rank, or neither of the two");
  }
}

void check_store(const BootstrapOptions& options) {
  const std::string port = std::to_string(options.store_port);
  if (options.store_host.empty() != (options.store_port == 0)) {
    refuse_option("a store at host '" + options.store_host + "', port " + port,
                  "both store_host and store_port (1 to 65535), or neither");
  }
  if (options.store && options.store_port != 0) {
    refuse_option("two stores: an object, and host '" + options.store_host + "', port " + port, "one of the two");
  }
  if (options.size > 1 && !options.store && options.store_port == 0) {
    refuse_option("no store for " + std::to_string(options.size) + " ranks",
                  "store, or store_host and store_port: the ranks meet through it");
  }
}

void check_ports(const BootstrapOptions& options) {
  if (options.port_min <= options.port_max && (options.port_min == 0) == (options.port_max == 0)) return;
  refuse_option("ports from " + std::to_string(options.port_min) + " to " + std::to_string(options.port_max),
                "1 <= port_min <= port_max, or 0 for both");
}

}  // namespace

std::string store_key_prefix(const Launch& launch) {
  if (launch.name) return "ddp/given/" + *launch.name + "/";
  return launch.round ? "ddp/round_" + to_string(*launch.round) + "/"
                      : "ddp/restart_" + std::to_string(launch.restart_count) + "/";
}

Launch launch_from(const BootstrapOptions& options) {
  check_ranks(options);
  check_store(options);
  check_ports(options);
  Launch launch;
  launch.rank = options.rank;
  launch.size = options.size;
  launch.local_rank = options.local_rank.value_or(options.size == 1 ? 0 : -1);
  launch.local_size = options.local_size.value_or(options.size == 1 ? 1 : 0);
  if (options.size > 1) {
    launch.given_store = options.store;
    if (!options.store) launch.store = StoreAddress{options.store_host, options.store_port};
  }
  launch.name = options.name;
  launch.round = options.round;
  launch.ports = {options.port_min, options.port_max};
  launch.interface = options.interface;
  return launch;
}

}  // namespace ddp::core
