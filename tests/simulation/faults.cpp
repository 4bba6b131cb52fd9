#include "tests/simulation/faults.hpp"

#include <algorithm>
#include <csignal>
#include <utility>

namespace ddp::simulation {

using launcher::Ending;

namespace {

constexpr Ending kExitedWithAnError{Ending::Kind::exited, 1, false};
constexpr Duration kLatestReport = 2s;

// Clocks of nodes differ by the delay of the message that set them.
constexpr std::chrono::milliseconds kSlackOfClocks{350};

}  // namespace

void Faults::perhaps_befall(Duration within) {
  if (wanted_.empty() || !dice().chance(70)) return;
  for (int i = dice().between(1, 2); i > 0; --i) {
    const auto fault = dice().one_of(wanted_);
    world_.clock.after(dice().between(0ms, within), nullptr, [this, fault] { befall(fault); });
  }
}

void Faults::end() {
  is_over_ = true;
  world_.network->accept_all();
  world_.let_all_succeed();
  other_jobs_.go();
}

void Faults::befall(Fault fault) {
  if (is_over_) return;
  world_.blame.forget();
  const auto happens = [&] {
    switch (fault) {
      case Fault::reset: return reset();
      case Fault::refusal: return refuse();
      case Fault::close: return close();
      case Fault::one_way: return block_one_way();
      case Fault::cut: return cut();
      case Fault::stall: return stall();
      case Fault::late_death: return kill_worker();
      case Fault::replaced_host: return replace_host();
      case Fault::stop: return stop();
      case Fault::slow_files: return slow_files();
      case Fault::failed_calls: return fail_calls();
      case Fault::replaced_endpoint: return replace_endpoint();
      case Fault::full_daemon: return fill_daemon();
      case Fault::crashed_hosts: return crash_hosts();
      default: return false;  // befalls() none
    }
    return false;
  };
  drawn_[index_of(fault)] += happens();
}

FaultCounts Faults::drawn() const {
  auto out = drawn_;
  for (std::size_t i = 0; i < kFaults; ++i) out[i] += world_.settings_used[i];
  return out;
}

// --- connections ---

bool Faults::reset() {
  const auto open = world_.network->connections();
  if (open.empty()) return false;
  auto& channel = *dice().one_of(open);
  world_.trace("fault: the connection of ", channel.owner().name, " to ", channel.peer().owner().name, " is reset");
  world_.network->reset(channel);
  return true;
}

bool Faults::refuse() {
  const auto ports = world_.network->ports();
  if (ports.empty()) return false;
  const auto [host, port] = dice().one_of(ports);
  const auto time = dice().between(10ms, 5 * limit());
  world_.trace("fault: host ", host, " refuses connections to port ", port, " for ", time.count() / 1000, " ms");
  world_.network->refuse(host, port);
  world_.clock.after(time, nullptr, [this, host = host, port = port] { world_.network->accept(host, port); });
  return true;
}

bool Faults::close() {
  auto* node = some_node();
  if (node == nullptr || !node->runs() || !node->workers().is_any_left()) return false;
  return node->close_in_order(static_cast<double>(dice().below(1000)) / 1000);
}

// --- the network ---

// Up to longer than anybody waits for the others.
Duration Faults::some_time() {
  return dice().between(Duration(10ms), dice().one_of<Duration>({limit(), 5 * limit(), job().orphan_limit + 5s}));
}

bool Faults::block_one_way() {
  if (world_.hosts() < 2) return false;
  const int from = dice().between(0, world_.hosts() - 1);
  const int to = (from + dice().between(1, world_.hosts() - 1)) % world_.hosts();
  const auto time = some_time();
  world_.trace("fault: nothing goes from host ", from, " to host ", to, " for ", time.count() / 1000, " ms");
  block_for(from, to, time);
  return true;
}

bool Faults::cut() {
  if (world_.hosts() < 3) return false;
  const int a = dice().between(0, world_.hosts() - 1);
  const int b = (a + dice().between(1, world_.hosts() - 1)) % world_.hosts();
  const auto time = some_time();
  world_.trace("fault: hosts ", a, " and ", b, " can't reach each other for ", time.count() / 1000, " ms");
  block_for(a, b, time);
  block_for(b, a, time);
  world_.miss_each_other(a, b);
  return true;
}

void Faults::block_for(int from, int to, Duration time) {
  world_.checks.members_change();
  world_.network->block(from, to);
  world_.clock.after(time, nullptr, [this, from, to] {
    world_.checks.members_change();  // in a round that began meanwhile
    world_.network->unblock(from, to);
  });
}

void Faults::fail_a_worker(Node& node) {
  const int local_rank = dice().between(0, node.workers().count() - 1);
  world_.checks.fails(node.workers().round());
  node.workers().fail(local_rank, kExitedWithAnError);
}

// --- processes ---

Node* Faults::some_node() {
  const auto alive = world_.nodes_alive();
  return alive.empty() ? nullptr : dice().one_of(alive);
}

// What comes over its connections waits. Who connects gets no answer, as the loop has a part in every handshake.
bool Faults::stall() {
  const auto time = dice().between(limit(), 3 * limit());
  if (world_.is_daemon_alive() && dice().chance(30)) {
    world_.pause(world_.daemon_process(), time);
    return true;
  }
  auto* node = some_node();
  if (node == nullptr) return false;
  world_.pause(node->process(), time);
  return true;
}

bool Faults::kill_worker() {
  auto* node = some_node();
  if (node == nullptr || !node->tree().runs()) return false;
  auto& workers = node->workers();
  const int local_rank = dice().between(0, workers.count() - 1);
  const auto delay = dice().between(Duration(0), kLatestReport);
  if (!workers.does_work(local_rank)) return false;
  world_.trace("fault: a worker of ", node->name(), " is killed, which is reported ", delay.count() / 1000,
               " ms later");
  const auto& round = node->round();
  // Later than the grace it can't be told from a worker that ddprun has killed.
  const bool is_in_time = delay + kSlackOfClocks <= kLatestReport && delay < Duration(job().grace);
  if (is_in_time && world_.is_round_undisturbed(round.round, kSlackOfClocks))
    world_.blame.expect({round.round, node->host_name(), round.rank_first + local_rank, local_rank,
                         world_.checks.changes_of_members()});
  world_.checks.fails(workers.round());
  workers.die_slowly(local_rank, delay);
  world_.worker_ended(workers.round(), false);
  return true;
}

// By another machine or another ddprun. The endpoint's own node has no successor in its place.
bool Faults::replace_host() {
  auto* old = some_node();
  if (old == nullptr || (old->host() == 0 && !job().is_daemon_apart) || world_.network->is_lost(old->host()))
    return false;
  world_.trace("fault: another ddprun comes in place of ", old->name());
  int host = old->host();
  end_of(*old);
  if (dice().chance(30))  // of the same name at another address
    for (int other = 1; other < job().hosts; ++other)
      if (world_.node_on(other) == nullptr && !world_.network->is_lost(other)) host = other;
  world_.clock.after(dice().between(0ms, limit()), nullptr, [this, host, old] {
    if (world_.node_on(host) == nullptr && !world_.network->is_lost(host)) world_.start_node(host, old);
  });
  return true;
}

void Faults::end_of(Node& old) {
  switch (dice().between(0, 2)) {
    case 0: return old.kill();       // its guardian ends its workers, and says so
    case 1: return old.kill_both();  // its kernel closes its connection
    default:                         // nobody says anything
      const int host = old.host();
      world_.lose_host(host);
      world_.network->bring_back(host);
  }
}

bool Faults::replace_endpoint() {
  if (job().is_daemon_apart || world_.network->is_lost(0)) return false;
  world_.trace("fault: another ddprun comes at the endpoint");
  world_.checks.endpoint_is_replaced();
  if (auto* old = world_.node_on(0)) end_of(*old);
  world_.clock.after(dice().between(0ms, dice().one_of<Duration>({limit(), 20s})), nullptr, [this] {
    if (!is_over_ && world_.node_on(0) == nullptr && !world_.network->is_lost(0)) world_.start_node(0);
  });
  return true;
}

bool Faults::crash_hosts() {
  auto alive = world_.nodes_alive();
  if (alive.size() < 2) return false;
  auto* one = dice().one_of(alive);
  std::erase(alive, one);
  crash(*one);
  auto* other = dice().one_of(alive);
  world_.clock.after(dice().between(0ms, limit()), nullptr, [this, other] {
    if (other->is_alive()) crash(*other);
  });
  return true;
}

// Another ddprun comes there.
void Faults::crash(Node& node) {
  const int host = node.host();
  world_.trace("fault: all processes of host ", host, " are killed");
  if (host == 0 && !job().is_daemon_apart) world_.checks.endpoint_is_replaced();
  node.crash(dice().chance(50));
  world_.clock.after(dice().between(0ms, 2 * limit()), nullptr, [this, host] {
    if (!is_over_ && world_.node_on(host) == nullptr && !world_.network->is_lost(host)) world_.start_node(host);
  });
}

bool Faults::stop() {
  auto* node = some_node();
  if (node == nullptr || !node->runs()) return false;
  world_.clock.after(0ms, &node->process(), [this, node] { node->stop(world_.stop_signal()); });
  return true;
}

bool Faults::slow_files() {
  auto* node = some_node();
  if (node == nullptr || !node->runs()) return false;
  const auto time = dice().between(limit(), 5 * limit());
  world_.trace("fault: the files of ", node->name(), " are slow for ", time.count() / 1000, " ms");
  node->slow_files_until(world_.clock.now() + time);
  return true;
}

// Half of the time a worker fails, so that another round begins soon.
bool Faults::fail_calls() {
  const int host = dice().between(0, job().hosts - 1);
  const auto call = dice().one_of<Call>({Call::spawn, Call::seats, Call::store, Call::output});
  const auto time = dice().between(limit(), 5 * limit());
  world_.trace("fault: on host ", host, " each ", name_of(call), " fails for ", time.count() / 1000, " ms");
  world_.let_fail(host, call, world_.clock.now() + time);
  auto* node = some_node();
  if (node != nullptr && node->workers().do_all_work() && dice().chance(50)) fail_a_worker(*node);
  return true;
}

// The job of these histories has a place, unless it has not begun or the daemon is started again.
bool Faults::fill_daemon() {
  if (!job().is_daemon_apart) return false;
  const auto time = some_time();
  world_.trace("fault: other jobs take all places of the daemon for ", time.count() / 1000, " ms");
  other_jobs_.come(static_cast<int>(kPlaces), world_.clock.now() + time);
  if (world_.is_daemon_alive() && dice().chance(60)) {
    world_.kill_daemon();
    world_.clock.after(dice().between(1ms, 2s), nullptr, [this] {
      if (!world_.is_daemon_alive()) world_.start_daemon();
    });
  }
  return true;
}

}  // namespace ddp::simulation
