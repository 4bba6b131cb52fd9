#include "tests/simulation/history.hpp"

#include <algorithm>
#include <csignal>
#include <exception>

#include "rendezvous/membership/limits.hpp"
#include "tests/simulation/faults.hpp"
#include "tests/simulation/waits.hpp"
#include "tests/simulation/world.hpp"

namespace ddp::simulation {
namespace {

using launcher::Ending;

constexpr std::uint64_t kEventsMax = 300'000;  // of one history; more is a storm

constexpr Duration kWaitsAfterFaults = 60s;

class History {
 public:
  History(std::uint64_t seed, const HistoryOptions& options)
      : world_(seed, static_cast<bool>(options.trace)),
        switched_(world_, options.faults),
        checks_waits_(options.checks_waits) {
    world_.out = options.trace;
    draw_job(options.as_json);
    job().is_signal_told = !options.faults.empty();
    job().leaves_when_stopped = seed % 2 == 1;
    job().are_ends_proven = options.faults.count(Fault::crashed_hosts) != 0;
    if (options.faults.count(Fault::replaced_endpoint) != 0) {
      job().is_endpoint_numeric = world_.fault_dice.chance(50);
      job().has_token = world_.fault_dice.chance(50);
    }
    for (const auto fault : options.faults) job().settings[index_of(fault)] = !befalls(fault);
    draw_settings();
    if (options.has_ports && !job().is_daemon_apart) draw_ports();
    if (options.has_look_ups) draw_look_ups();
    if (options.has_seats) job().workers.takes_seats_percent = world_.seat_dice.one_of<int>({50, 100, 100});
    if (job().workers.takes_seats_percent == 100) world_.checks.all_are_elastic();
  }

  HistoryResult play() {
    HistoryResult result;
    try {
      start();
      for (int i = 0; i < faults_; ++i) {
        run_for(time_of_next_fault());
        befall();
        switched_.perhaps_befall(pace_);
      }
      run_for(dice().between(0ms, 3s));
      if (is_scheduled_)
        world_.signal_every_process(world_.scheduler_dice.one_of<int>({SIGTERM, SIGINT, SIGUSR1}), 200ms);
      heal();
      waits_.end_at(world_.clock.now() + kWaitsAfterFaults);
      run_for(settling_time());
      check_end();
      for (const auto* node : world_.nodes_alive()) result.goes_on = result.goes_on || node->round().round.term != 0;
    } catch (const Violation& violation) {
      result.violation = violation.what();
    } catch (const std::exception& error) {
      result.violation = std::string("exception: ") + error.what();
    }
    result.events = world_.clock.events_played();
    result.rounds = world_.checks.rounds_told();
    result.completed = world_.checks.rounds_completed();
    result.faults = faults_;
    result.drawn = switched_.drawn();
    result.late_answers = world_.late_answers;
    result.blamed_right = world_.blame.times_right();
    result.seats_given = world_.seats_given;
    result.killed_alone = world_.killed_alone;
    result.failed_calls = world_.failed_calls;
    result.refused_new = world_.refused_new;
    result.refused_with_round = world_.refused_with_round;
    result.sockets_let_go = world_.sockets_let_go;
    if (!result.violation.empty()) world_.trace("VIOLATION: ", result.violation);
    return result;
  }

 private:
  Dice& dice() { return world_.dice; }
  Job& job() { return world_.job; }
  int percent(int of_histories, int low, int high) {
    return dice().chance(of_histories) ? dice().between(low, high) : 0;
  }

  void draw_job(bool as_json) {
    auto& its = job();
    its.network.as_json = as_json;
    its.hosts = dice().chance(5) ? 1 : dice().between(2, 6);
    its.is_daemon_apart = dice().chance(40);
    // The rest are spares, which a job of one node does not have: it is on the host that it was started on.
    its.nodes_max = std::max(std::min(its.hosts, 2), its.hosts - percent(30, 1, 2));
    its.nodes_min = dice().chance(30) ? its.nodes_max : dice().between(1, its.nodes_max);
    its.restarts_max = dice().chance(20) ? 0 : dice().between(1, 6);
    its.join_timeout = std::chrono::milliseconds(1000 * dice().between(5, 30));
    its.last_call_timeout = std::chrono::milliseconds(100 * dice().between(1, 40));
    its.grace = std::chrono::milliseconds(100 * dice().between(1, 40));
    its.orphan_limit = std::chrono::milliseconds(1000 * dice().between(8, 20));
    its.network.heartbeat_timeout = dice().one_of<Duration>({250ms, 1s, 3s, 3s, 5s});
    its.network.delay_max = dice().one_of<Duration>({200us, 2ms, 20ms, 60ms});
    its.workers.start_max = dice().one_of<Duration>({10ms, 100ms, 3s});
    its.workers.stop_max = dice().one_of<Duration>({2ms, 50ms, 5s});
    its.workers.ignores_term_percent = percent(20, 10, 100);
    its.workers.leaves_orphan_percent = percent(20, 10, 100);
    its.workers.unkillable_percent = percent(2, 1, 20);
    its.workers.fails_when_stopped_percent = percent(20, 10, 100);
    its.workers.takes_stops_percent = world_.stop_dice.one_of<int>({0, 90, 100});
    its.is_collective_endless = dice().chance(20);
    its.collective_timeout_max = dice().one_of<Duration>({3ms, 100ms, 10s});
    faults_ = dice().chance(5) ? 0 : dice().between(1, 8);
    pace_ = dice().one_of<Duration>({50ms, 500ms, 3s, 10s});
    breaks_connections_ = dice().chance(30);
    stops_ = dice().chance(10);
    warns_ = world_.stop_dice.chance(50);
    finishes_ = dice().chance(20);
    is_scheduled_ = world_.scheduler_dice.chance(5);
    if (is_scheduled_) its.signal_window = 200ms;
  }

  void draw_settings() {
    auto& dice = world_.setting_dice;
    if (job().has(Fault::restart_window) && dice.chance(50)) {
      job().restart_window = dice.one_of<std::chrono::milliseconds>({1s, 5s, 20s});
      ++world_.settings_used[index_of(Fault::restart_window)];
      world_.checks.window_is_set();
    }
    if (job().has(Fault::time_limit) && dice.chance(20))
      job().time_limit = std::chrono::milliseconds(1000 * dice.between(1, 40));
  }

  void draw_ports() {
    auto& its = job();
    its.has_token = dice().chance(50);
    its.ports.assign(static_cast<std::size_t>(dice().between(2, 8)), PortHolder::nobody);
    its.endpoint_at = dice().between(0, static_cast<int>(its.ports.size()) - 1);
    for (auto& holder : its.ports)
      holder = dice().one_of<PortHolder>({PortHolder::nobody, PortHolder::other_job, PortHolder::other_job,
                                          PortHolder::hangs_up, PortHolder::silent, PortHolder::turns_away});
    its.ports[static_cast<std::size_t>(its.endpoint_at)] = PortHolder::nobody;
  }

  void draw_look_ups() {
    auto& dice = world_.look_up_dice;
    auto& its = job().look_ups;
    its.kind = dice.one_of<LookUps::Kind>(
        {LookUps::Kind::by_address, LookUps::Kind::by_address, LookUps::Kind::by_node_rank, LookUps::Kind::slurm});
    its.known_after_max = dice.one_of<Duration>({0s, 2s, 8s, 20s});
    its.answer_max = dice.one_of<Duration>({1ms, 50ms, 2s, 20s});
    its.may_have_daemon = dice.chance(50);
    if (!job().is_daemon_apart && job().ports.size() == 1 && dice.chance(5))
      job().ports.front() = dice.one_of<PortHolder>({PortHolder::other_job, PortHolder::hangs_up});
  }

  void start() {
    world_.begin();
    if (checks_waits_) waits_.begin();
    world_.trace("hosts ", job().hosts, ", nodes ", job().nodes_min, " to ", job().nodes_max, ", restarts ",
                 job().restarts_max, job().is_daemon_apart ? ", daemon apart" : "", ", heartbeat limit ms ",
                 job().network.heartbeat_timeout.count() / 1000, ", join timeout ms ", job().join_timeout.count(),
                 ", last call ms ", job().last_call_timeout.count());
    const auto spread = dice().one_of<Duration>({0ms, 10ms, 2s});
    if (job().is_daemon_apart)
      world_.clock.after(dice().between(0ms, spread), nullptr, [this] {
        if (!world_.is_daemon_alive()) world_.start_daemon();
      });
    for (int host = 0; host < job().hosts; ++host)
      world_.clock.after(dice().between(0ms, spread), nullptr, [this, host] { world_.start_node(host); });
    run_for(dice().between(0ms, job().last_call_timeout + 1s));
    if (dice().chance(70)) run_for(spread + job().last_call_timeout + job().workers.start_max);
  }

  void run_for(Duration time) {
    if (!world_.clock.run_until(world_.clock.now() + time, kEventsMax))
      throw Violation("a storm: " + std::to_string(kEventsMax) + " events");
  }

  // Several at once, now and then.
  Duration time_of_next_fault() { return dice().chance(30) ? Duration(0) : dice().between(0ms, 2 * pace_); }

  // --- faults ---

  Node* some_node() {
    const auto alive = world_.nodes_alive();
    return alive.empty() ? nullptr : dice().one_of(alive);
  }

  void befall() {
    world_.blame.forget();
    if (stops_ && dice().chance(30)) return warns_ && world_.stop_dice.chance(70) ? warn_some_node() : stop_some_node();
    if (finishes_ && dice().chance(30)) return finish_work();
    switch (dice().between(0, 15)) {
      case 0:
      case 1: return fail_worker();
      case 2: return hang_worker();
      case 3: return kill_agent();
      case 4: return kill_with_guardian();
      case 5: return lose_host();
      case 6: return freeze_host();
      case 7: return pause_agent();
      case 8:
      case 9: return part();
      case 10: return block_one_way();
      case 11: return break_connections();
      case 12: return daemon_dies();
      case 13: return slow_down();
      default: return start_node();
    }
  }

  void fail_worker() {
    auto* node = some_node();
    if (node == nullptr || !(node->workers().is_any_left() || node->workers().is_any_waiting())) return;
    const int local_rank = dice().between(0, node->workers().count() - 1);
    const auto ending = dice().one_of<Ending>({{Ending::Kind::exited, 1, false},
                                               {Ending::Kind::exited, 77, false},
                                               {Ending::Kind::killed, SIGKILL, false},
                                               {Ending::Kind::killed, SIGSEGV, true}});
    world_.trace("fault: a worker of ", node->name());
    if (node->workers().does_work(local_rank)) world_.checks.fails(node->workers().round());
    node->workers().fail(local_rank, ending);
  }

  // Its peers find it missing at the deadline of their collective; but not where they have stopped at a step meanwhile,
  // as a warning begins no grace: then it is left to the scheduler.
  void hang_worker() {
    auto* node = some_node();
    if (node == nullptr || job().is_collective_endless || finishes_ || (stops_ && warns_) ||
        node->round().world_size < 2)
      return;
    const int local_rank = dice().between(0, node->workers().count() - 1);
    if (!node->workers().does_work(local_rank) || world_.checks.newest_complete() != node->workers().round()) return;
    world_.trace("fault: a worker of ", node->name(), " hangs");
    node->workers().hang(local_rank);
    world_.worker_ended(node->workers().round(), false, node->round().rank_first + local_rank);
  }

  void kill_agent() {
    auto* node = some_node();
    if (node == nullptr) return;
    node->kill();
    perhaps_replace(node->host());
  }

  void kill_with_guardian() {
    auto* node = some_node();
    if (node == nullptr) return;
    if (dice().chance(50))
      node->kill_both();
    else
      node->kill_guardian();
    perhaps_replace(node->host());
  }

  // A scheduler's way.
  void perhaps_replace(int host) {
    if (dice().chance(50)) world_.clock.after(dice().between(0ms, 5s), nullptr, [this, host] { start_node_on(host); });
  }

  void lose_host() {
    const int host = dice().between(0, world_.hosts() - 1);
    if (host == job().hosts || world_.network->is_lost(host)) return;
    world_.lose_host(host);
    if (dice().chance(50)) world_.clock.after(dice().between(0ms, 10s), nullptr, [this, host] { bring_back(host); });
    perhaps_replace(host);
  }

  void bring_back(int host) {
    if (!world_.network->is_lost(host)) return;
    world_.trace("host ", host, " is back");
    world_.network->bring_back(host);
  }

  void freeze_host() { world_.freeze(dice().between(0, world_.hosts() - 1), dice().between(10ms, 3 * limit())); }

  void pause_agent() {
    if (auto* node = some_node()) world_.pause(node->process(), dice().between(10ms, 3 * limit()));
  }

  // The hosts fall into two groups; the daemon's may be in either. A history has either partitions or connections that
  // break: with both, a host ends three rounds soon, and the cool-down leaves out the only node that has the newest
  // work (seed 1901).
  void part() {
    if (breaks_connections_) return;
    std::vector<int> side(static_cast<std::size_t>(world_.hosts()));
    for (auto& its : side) its = dice().between(0, 1);
    const auto time = dice().between(10ms, 5 * limit());
    world_.trace("fault: a partition for ", time.count() / 1000, " ms");
    for (int a = 0; a < world_.hosts(); ++a)
      for (int b = 0; b < world_.hosts(); ++b)
        if (side[static_cast<std::size_t>(a)] != side[static_cast<std::size_t>(b)]) block_for(a, b, time);
  }

  void block_one_way() {
    if (breaks_connections_ || world_.hosts() < 2) return;
    const int from = dice().between(0, world_.hosts() - 1), to = dice().between(0, world_.hosts() - 1);
    if (from == to) return;
    const auto time = dice().between(10ms, 5 * limit());
    world_.trace("fault: nothing goes from host ", from, " to host ", to, " for ", time.count() / 1000, " ms");
    block_for(from, to, time);
  }

  void block_for(int from, int to, Duration time) {
    if (from == to) return;
    world_.checks.members_change();
    world_.network->block(from, to);
    world_.clock.after(time, nullptr, [this, from, to] {
      world_.checks.members_change();  // in a round that began meanwhile
      world_.network->unblock(from, to);
    });
  }

  void break_connections() {
    if (!breaks_connections_) return;
    const int a = dice().between(0, world_.hosts() - 1), b = dice().between(0, world_.hosts() - 1);
    world_.trace("fault: connections between hosts ", a, " and ", b, " break");
    world_.network->break_connections(a, b);
    if (a != b) world_.network->break_connections(b, a);
  }

  void daemon_dies() {
    if (!job().is_daemon_apart || !world_.is_daemon_alive()) return;
    world_.kill_daemon();
    if (dice().chance(80))
      world_.clock.after(dice().between(1ms, 5s), nullptr, [this] {
        if (!world_.is_daemon_alive()) world_.start_daemon();
      });
  }

  void slow_down() {
    const auto slowest = std::min<Duration>(300ms, limit() / 4);
    world_.network->delays(1ms, slowest);
    world_.clock.after(dice().between(1s, 10s), nullptr,
                       [this] { world_.network->delays(50us, job().network.delay_max); });
  }

  // A replacement, or one more.
  void start_node() { start_node_on(dice().between(0, job().hosts - 1)); }

  void start_node_on(int host) {
    if (world_.node_on(host) != nullptr || world_.network->is_lost(host)) return;
    if (host == 0 && !job().is_daemon_apart) world_.checks.endpoint_is_replaced();
    world_.start_node(host);
  }

  void warn_some_node() {
    if (auto* node = some_node(); node != nullptr && node->runs())
      world_.clock.after(0ms, &node->process(), [node] { node->warn(SIGUSR1); });
  }

  void stop_some_node() {
    if (auto* node = some_node(); node != nullptr && node->runs()) {
      world_.clock.after(0ms, &node->process(), [this, node] { node->stop(world_.stop_signal()); });
      is_stopped_ = true;
    }
  }

  void finish_work() {
    world_.trace("the work is done");
    world_.is_work_done = true;
    for (auto* node : world_.nodes_alive()) node->workers().finish_work();
  }

  // --- the end ---

  Duration limit() { return job().network.heartbeat_timeout; }

  void heal() {
    world_.trace("all faults are over");
    world_.network->unblock_all();
    switched_.end();
    world_.network->delays(50us, job().network.delay_max);
    for (int host = 0; host < job().hosts; ++host) bring_back(host);
    if (job().is_daemon_apart && !world_.is_daemon_alive()) world_.start_daemon();
    time_out_collectives();
  }

  // Workers whose peers are gone and whom nobody stops, as there is no membership left, wait for their collective's
  // deadline.
  void time_out_collectives() {
    world_.blame.end();  // a rank that was killed before may not be the only one any more
    for (auto* node : world_.nodes_alive())
      if (!node->serves() && !node->session().is_joined() && !world_.checks.is_complete(node->workers().round()))
        for (int local_rank = 0; local_rank < node->workers().count(); ++local_rank)
          node->workers().fail(local_rank, {Ending::Kind::killed, SIGKILL, false});
    world_.clock.after(10s + job().join_timeout, nullptr, [this] { time_out_collectives(); });
  }

  // The sum of what may be waited for in a row: pauses that hold on, the limits of heartbeats, of the search for the
  // next host and of re-stating, the stop of workers, the wait for nodes, the last calls, the cool-down of a host.
  // A host may be left out for a broken link, and then because it has ended too many rounds.
  Duration settling_time() {
    constexpr Duration kLeftOut = 2 * rendezvous::CoolDown::kOut;
    return 10s + 12 * limit() + 2 * job().orphan_limit + 3 * job().join_timeout + 3 * job().last_call_timeout +
           3 * job().grace + job().time_limit + 2 * job().workers.stop_max + job().collective_timeout_max + 40s +
           kLeftOut;
  }

  void check_end() {
    for (const auto& node : world_.nodes()) {
      const bool is_gone = world_.network->is_lost(node->host()) || !node->tree_runs();
      if (!node->is_alive() && !is_gone && node->workers().is_any_worker_left())
        throw Violation("processes of " + node->name() + " outlive it");
    }
    const auto alive = world_.nodes_alive();
    if (alive.empty()) return;  // the job has ended or all of it was killed, and nobody is left who could wait
    std::string all;
    for (const auto* node : alive) all += " " + node->name();
    if (world_.checks.may_two_go_on() && !can_two_jobs_meet()) return;
    const auto* running = find_membership();
    if (running == nullptr) throw Violation("nodes wait for ever, and no membership knows of them:" + all);
    const auto view = running->view();
    if (view.phase != "running")
      throw Violation("the job waits for ever, membership is '" + view.phase + "', nodes alive:" + all);
    RoundId round{};
    int members = 0;
    for (const auto* node : alive)
      if (!world_.checks.was_disowned(node->round().round)) round = std::max(round, node->round().round);
    for (const auto* node : alive) members += node->round().round == round && node->workers().is_any_left();
    const int wanted = std::min(static_cast<int>(alive.size()), job().nodes_max);
    if (members != wanted)
      throw Violation("round " + to_string(round) + " runs on " + std::to_string(members) + " of " +
                      std::to_string(wanted) + " nodes; alive:" + all);
    for (const auto* node : alive)
      if (node->round().round != round && node->workers().is_any_left())
        throw Violation(node->name() + " goes on with round " + to_string(node->round().round) + ", the others with " +
                        to_string(round));
    if (!world_.checks.is_complete(round) && world_.checks.newest_complete() != round)
      throw Violation("round " + to_string(round) + " never completes a collective");
  }

  // Of two jobs, one of which was begun once more at the endpoint, the later one gives way where there is a token. They
  // find each other through a ddprun that is at the endpoint.
  bool can_two_jobs_meet() { return job().has_token && world_.node_on(0) != nullptr; }

  const rendezvous::Membership* find_membership() {
    if (job().is_daemon_apart) return world_.membership_of_daemon();
    const rendezvous::Membership* found = nullptr;
    for (const auto* node : world_.nodes_alive())
      if (node->server() != nullptr) {
        if (found != nullptr) throw Violation("two nodes serve the job");
        found = &node->server()->membership();
      }
    return found;
  }

  World world_;
  Faults switched_;
  Waits waits_{world_};
  const bool checks_waits_;
  int faults_ = 0;
  Duration pace_{0};
  bool breaks_connections_ = false, stops_ = false, warns_ = false, finishes_ = false, is_stopped_ = false,
       is_scheduled_ = false;
};

}  // namespace

HistoryResult play(std::uint64_t seed, const HistoryOptions& options) { return History(seed, options).play(); }

}  // namespace ddp::simulation
