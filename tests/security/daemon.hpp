// ddp-rendezvous on a free port, and nodes of the job "job" that meet there.
#pragma once

#include <string>
#include <vector>

#include "tests/integration/job.hpp"

namespace ddp::test {

// ddprun's arguments for a node with one worker, which runs a shell script.
inline std::vector<std::string> node_of(const std::string& endpoint, const std::string& nodes,
                                        const std::string& script) {
  return {"--nproc-per-node=1",
          "--nnodes=" + nodes,
          "--rdzv-backend=c10d",
          "--rdzv-id=job",
          "--rdzv-endpoint=" + endpoint,
          "--rdzv-conf=is_host=false",
          "sh",
          "-c",
          script};
}

class Daemon : public Job {
 public:
  // 0: on a free port.
  explicit Daemon(std::uint16_t port = 0) : Job({"--port", std::to_string(port), "--host", "127.0.0.1"}, program()) {}

  static Options program() {
    Options options;
    options.program = "ddp-rendezvous";
    return options;
  }

  std::uint16_t port() { return static_cast<std::uint16_t>(number_after("membership listens on port ")); }

  std::vector<std::string> node(const std::string& nodes, const std::string& script) {
    return node_of("127.0.0.1:" + std::to_string(port()), nodes, script);
  }
};

}  // namespace ddp::test
