// Command lines and environments of programs that have a token.
#pragma once

#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/integration/job.hpp"

namespace ddp::test::token {

inline const std::string kToken = "7d3f0a5c_of_the_nodes";

// Empty: without a token, whatever the user of the test has at home.
inline Job::Options with_token(const std::string& token, const std::string& program = "ddprun") {
  Job::Options out;
  out.program = program;
  out.environment = {token.empty() ? "HOME=/nonexistent" : "DDPRUN_TOKEN=" + token};
  return out;
}

// A program and its arguments, by another user if this process is root: who can read everything proves little.
constexpr unsigned kUser = 54'321;
constexpr const char* kSetpriv = "/usr/bin/setpriv";

struct Start {
  std::vector<std::string> arguments;
  Job::Options options;
};

inline Start by_user(const std::string& program, std::vector<std::string> arguments, const std::string& token) {
  Start out{std::move(arguments), with_token(token, program)};
  if (::geteuid() != 0) return out;
  const auto user = std::to_string(kUser);
  out.arguments.insert(out.arguments.begin(), {"--reuid=" + user, "--regid=" + user, "--clear-groups", built(program)});
  out.options.program = kSetpriv;
  return out;
}

// A node that meets the others at a ddp-rendezvous on this host.
inline std::vector<std::string> node_at(long port, const std::string& script, int nodes = 2,
                                        std::vector<std::string> options = {}) {
  options.insert(options.begin(), {"--nproc-per-node=1", "--nnodes=" + std::to_string(nodes), "--rdzv-backend=c10d",
                                   "--rdzv-endpoint=127.0.0.1:" + std::to_string(port), "--rdzv-id=job"});
  options.insert(options.end(), {"sh", "-c", script});
  return options;
}

// ddp-rendezvous on loopback.
struct Daemon {
  explicit Daemon(const Job::Options& options, long at = 0)
      : program({"--port=" + std::to_string(at), "--host=127.0.0.1"}, options),
        port(program.number_after("membership listens on port ")) {}

  Job program;
  long port;
};

}  // namespace ddp::test::token
