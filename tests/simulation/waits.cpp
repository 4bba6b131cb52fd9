#include "tests/simulation/waits.hpp"

#include <algorithm>
#include <vector>

#include "rendezvous/membership/limits.hpp"

namespace ddp::simulation {

namespace {

constexpr Duration kLook = 200ms;
constexpr Duration kPauseMax = 10s;  // rendezvous::RestartPause

}  // namespace

void Waits::begin() {
  if (!ends_at_ || world_.clock.now() < *ends_at_)
    world_.clock.after(kLook, nullptr, [this] {
      look();
      begin();
    });
}

void Waits::look() {
  const auto now = world_.clock.now();
  const int changes = world_.checks.changes_of_members();
  for (const auto* node : world_.nodes_alive()) {
    if (!is_left_waiting(*node)) {
      waits_.erase(node);
      continue;
    }
    auto& wait = waits_.try_emplace(node, Wait{now, changes}).first->second;
    if (wait.changes_of_members != changes) wait = {now, changes};
    if (now - wait.since <= limit(*node)) continue;
    throw Violation(node->name() + " reaches the greater part of round " + to_string(world_.checks.newest_complete()) +
                    ", and has been left waiting for " + std::to_string((now - wait.since) / 1ms) + " ms");
  }
}

bool Waits::is_in_reach(const Node& node, const Node& other) const {
  const auto reach_each_other = [this](int a, int b) {
    return a == b || (world_.network->is_open(a, b) && world_.network->is_open(b, a));
  };
  if (!other.is_alive() || !other.runs() || !reach_each_other(node.host(), other.host())) return false;
  return !world_.job.is_daemon_apart || reach_each_other(other.host(), world_.job.hosts);
}

bool Waits::is_left_waiting(const Node& node) const {
  if (world_.is_work_done ||
      (world_.job.is_daemon_apart && (!world_.is_daemon_alive() || !world_.daemon_process().runs())))
    return false;
  int here = 0, of_round = 0;
  for (const auto* other : world_.nodes_alive()) {
    if (other->is_told_to_stop() || other->has_finished()) return false;
    if (!is_in_reach(node, *other)) continue;
    if (other->workers().is_any_left() || other->are_files_slow()) return false;
    here += other->session().is_joined();  // a newcomer may not find them: it knows the endpoint alone
    of_round += world_.checks.is_member(world_.checks.newest_complete(), *other);
  }
  const int size = world_.checks.size_of(world_.checks.newest_complete());
  return size > 0 && world_.checks.is_member(world_.checks.newest_complete(), node) && 2 * of_round > size &&
         here >= world_.job.nodes_min;
}

Duration Waits::limit(const Node& node) const {
  int here = 0;
  for (const auto* other : world_.nodes_alive()) here += is_in_reach(node, *other);
  const Duration last_call = here < world_.job.nodes_max ? Duration(world_.job.last_call_timeout) : Duration(0);
  return world_.job.network.heartbeat_timeout + 1s + last_call + kPauseMax + kLook;
}

}  // namespace ddp::simulation
