// ddp-rendezvous on a free port, and nodes of the job "job" that meet there.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "tests/integration/job.hpp"
#include "tests/security/control_messages.hpp"
#include "tests/security/raw_peer.hpp"

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

// A hostile node that becomes group rank 0 of the job "job", and opens the store of its first round when it is asked
// to.
class HostileMember {
 public:
  explicit HostileMember(Daemon& daemon) : peer_(RawPeer::agent(daemon.port())) {
    auto hello = hello_of('a');
    hello["node_rank"] = 0;
    peer_.say(hello.dump());
  }

  // False where it was not asked to: nobody else has come.
  bool opens_store() {
    const auto open = peer_.hear("open_store");
    if (!open) return false;
    round_ = std::get<rendezvous::OpenStore>(rendezvous::to_agent_of(*open).value()).round.number;
    peer_.say(json_of(rendezvous::ToMembership(rendezvous::StoreOpened{round_, 29400})).dump());
    return true;
  }

  // The end of its round, by a worker that ended with 3.
  rendezvous::RoundEnded failed_round() const {
    rendezvous::RoundEnded ended;
    ended.round = round_;
    ended.failures.emplace_back();
    ended.failures.back().ending = {rendezvous::Ending::Kind::exited, 3, false};
    return ended;
  }

  RawPeer& peer() { return peer_; }

 private:
  RawPeer peer_;
  std::uint32_t round_ = 0;
};

}  // namespace ddp::test
