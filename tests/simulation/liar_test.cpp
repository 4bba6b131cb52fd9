// Strangers claim rounds that they never had, wherever membership is or may come to be.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/sanitized.hpp"
#include "tests/simulation/working_job.hpp"
#include "tests/simulation/world.hpp"

namespace ddp::simulation {
namespace {

using namespace rendezvous;

constexpr std::uint64_t kSeeds = test::kIsSanitized ? 10 : 60;

// Comes to all ports at which membership is served or may be, again and again, each time as another node. It claims a
// newer round, or the one that runs, but knows the nonce of none; and it says what members say.
class Liar {
 public:
  explicit Liar(World& world) : world_(world), process_("liar", world.job.hosts - 1) {}

  void begin() {
    for (const auto& node : world_.nodes()) attack(node->host(), kStandbyPort + node_number(*node));
    attack(world_.endpoint_host(), world_.endpoint_port());
    world_.clock.after(world_.dice.between(10ms, 500ms), &process_, [this] { begin(); });
  }

 private:
  static int node_number(const Node& node) { return static_cast<int>(std::stoul(node.key(), nullptr, 16)); }

  void attack(int host, int port) {
    world_.network->connect(process_, host, port, 1s, [this](Network::Attempt, Channel* channel) {
      if (channel == nullptr) return;
      channel->listen({});
      const auto held = a_claim();
      channel->send(ToMembership(a_hello(held)));
      channel->send(ToMembership(RoundStarted{held.round.number}));
      channel->send(ToMembership(RoundFailed{held.round.number, "a lie"}));
      RoundEnded ended{held.round.number, {}, 1, true};
      ended.failures.emplace_back().ending = {launcher::Ending::Kind::killed, SIGKILL, false};
      channel->send(ToMembership(ended));
      channel->send(ToMembership(StopAsked{SIGTERM}));
    });
  }

  Held a_claim() {
    RoundId round;
    for (const auto& node : world_.nodes()) round = std::max(round, node->round().round);
    const int nodes = world_.dice.chance(20) ? world_.job.nodes_min : world_.job.nodes_max;
    if (world_.dice.chance(50)) round.term = 4'000'000'000;
    if (world_.dice.chance(50)) round.number += 7;
    const auto nonces =
        world_.dice.chance(25) ? std::vector<std::string>() : std::vector{secret()};  // as an old ddprun
    return {round, world_.dice.between(0, nodes - 1), nodes, 1000, true, false, nonces};
  }

  Hello a_hello(const Held& held) {
    Hello hello;
    hello.run_id = kRunId;
    hello.node_key = secret();
    hello.host_name = "liar";
    hello.nodes_min = world_.job.nodes_min;
    hello.nodes_max = world_.job.nodes_max;
    hello.was_welcomed = true;
    hello.held = held;
    return hello;
  }

  std::string secret() {
    char text[33];
    std::snprintf(text, sizeof text, "f%031x", ++secrets_);
    return text;
  }

  World& world_;
  Process process_;
  unsigned secrets_ = 0;
};

using Liars = WorkingJob;

TEST_F(Liars, EndNoWorkerOfAJobThatRuns) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed, false);
    begin(world, world.dice.chance(50));
    const auto round = world.nodes().front()->round();
    Liar liar(world);
    liar.begin();
    run(world, 20s);
    expect_at_work(world, static_cast<std::size_t>(world.job.hosts), round.round, round.round.number);
    ASSERT_FALSE(HasFatalFailure());
  }
}

TEST_F(Liars, EndNoWorkerWhereTheDaemonIsLostAndComesAgain) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed, false);
    begin(world, true);
    const auto round = world.nodes().front()->round();
    Liar liar(world);
    liar.begin();
    world.kill_daemon();
    run(world, world.dice.between(0ms, 10s));
    world.start_daemon();
    run(world, 30s);
    expect_at_work(world, static_cast<std::size_t>(world.job.hosts), round.round, round.round.number);
    ASSERT_FALSE(HasFatalFailure());
  }
}

TEST_F(Liars, KeepNoSuccessorFromGoingOnWithThoseThatAreLeft) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed, false);
    begin(world, false);
    const auto round = world.nodes().front()->round();
    Liar liar(world);
    liar.begin();
    world.lose_host(0);
    run(world, 60s);
    expect_at_work(world, static_cast<std::size_t>(world.job.hosts) - 1, round.round, round.round.number + 1);
    ASSERT_FALSE(HasFatalFailure());
  }
}

}  // namespace
}  // namespace ddp::simulation
