// What --hosts or --hostfile asks for: which ddprun is to run on which host, and with what.
//
// Pure: environment and files come in.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/command_line/launch_config.hpp"
#include "launcher/remote/hosts.hpp"

namespace ddp::launcher {

struct JobOnHosts {
  std::vector<RemoteHost> hosts{};  // in the order of their node ranks
  int nodes_min = 1;                // the job starts and goes on with so many hosts
  std::vector<std::string> ssh_arguments{};
  std::vector<std::string> variables{};  // "NAME=value" of -x
  std::string token{};                   // one or two lines; empty: one node needs none
  std::vector<std::string> notices{};
  bool only_shows = false;     // --dry-run
  bool prefixes_lines = true;  // --no-prefix makes it false
  bool is_quiet = false;       // --quiet

  std::vector<std::string> options{}, program{};  // of ddprun on each host
  bool is_elastic = false;                        // the nodes meet as with --rdzv-backend=c10d
  bool has_endpoint = false;                      // in `options`; else the first host is where the nodes meet
  std::string nodes{};                            // --nnodes
  std::vector<int> stop_signals{}, forward_signals{};
  std::chrono::milliseconds grace{};

  // Of ddprun on a host. `first_address`: that of the first host, for the others.
  std::vector<std::string> arguments_of(std::size_t host, const std::string& first_address) const;
};

// Empty: the command line asks for nothing of the kind. `entries`: all of the environment, as "NAME=value". `new_key`
// makes secrets. Throws UsageError and security::TokenError, also for what is wrong in options of the hosts' ddprun.
std::optional<JobOnHosts> job_on_hosts(const std::vector<std::string>& arguments, const EnvironmentLookup& environment,
                                       const std::vector<std::string>& entries, const Machine& machine,
                                       const std::function<std::string()>& new_key);

// What -x names: NAME, NAME=VALUE, or NAME* for all that begin so. Throws UsageError.
std::vector<std::string> exported_variables(const GivenOption& given, const std::vector<std::string>& entries);

}  // namespace ddp::launcher
