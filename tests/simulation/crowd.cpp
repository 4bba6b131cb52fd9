#include "tests/simulation/crowd.hpp"

#include <cstdio>
#include <utility>

#include "tests/simulation/world.hpp"

namespace ddp::simulation {

using namespace rendezvous;

Crowd::Crowd(World& world) : world_(world), process_(kStrangers, 0) {}

void Crowd::come(int jobs, TimePoint until) {
  go();
  until_ = until;
  world_.clock.at(until, &process_, [this, visit = visit_] {
    if (visit == visit_) go();
  });
  for (int job = 0; job < jobs; ++job) connect(job, visit_);
}

void Crowd::go() {
  ++visit_;
  until_ = world_.clock.now();
  for (auto* channel : std::exchange(here_, {}))
    if (channel->is_open()) channel->close();
}

std::string Crowd::address_of(const std::string& run_id) {
  return "10.1." + run_id.substr(std::string(kRunIdBegin).size()) + ".1";
}

void Crowd::connect(int job, int visit) {
  const auto is_over = [this, visit] { return visit != visit_ || world_.clock.now() >= until_; };
  const auto again = [this, job, visit, is_over] {
    world_.clock.after(world_.fault_dice.between(5ms, 200ms), &process_, [this, job, visit, is_over] {
      if (!is_over()) connect(job, visit);
    });
  };
  if (is_over()) return;
  world_.network->connect(process_, world_.endpoint_host(), kEndpointPort, 1s,
                          [this, job, is_over, again](Network::Attempt, Channel* channel) {
                            if (channel == nullptr) return again();
                            if (is_over()) return channel->close();
                            channel->listen({[](const Message&) {}, [again](const Closed&) { again(); }});
                            channel->send(ToMembership(hello_of(job)));
                            here_.push_back(channel);
                          });
}

Hello Crowd::hello_of(int job) {
  char key[33];
  std::snprintf(key, sizeof key, "e%031x", static_cast<unsigned>(job));
  Hello hello;
  hello.run_id = kRunIdBegin + std::to_string(job);
  hello.node_key = key;
  hello.host_name = "other";
  hello.nodes_min = hello.nodes_max = 2;
  hello.join_timeout = 1h;
  return hello;
}

}  // namespace ddp::simulation
