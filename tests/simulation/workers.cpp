#include "tests/simulation/workers.hpp"

#include <algorithm>
#include <csignal>
#include <utility>

#include "tests/simulation/world.hpp"

namespace ddp::simulation {

using launcher::Ending;
using launcher::WorkerGroupEvent;

namespace {

constexpr Duration kPipe = 100us;  // between the agent and its guardian
constexpr Ending kKilled{Ending::Kind::killed, SIGKILL, false};

}  // namespace

Workers::Workers(World& world, Process& tree, Process& guardian, Process& agent, int count, Tell tell,
                 TellCall tell_call)
    : world_(world),
      tree_(tree),
      guardian_(guardian),
      agent_(agent),
      tell_(std::move(tell)),
      tell_call_(std::move(tell_call)),
      workers_(static_cast<std::size_t>(count)) {}

void Workers::set(Worker& worker, State state) {
  const bool did_work = worker.state == State::working, does_work = state == State::working;
  worker.state = state;
  if (did_work == does_work) return;
  working_ += does_work ? 1 : -1;
  world_.workers_changed();
}

void Workers::spawn(const RoundId& round) {
  round_ = round;
  for (int local_rank = 0; local_rank < count(); ++local_rank) {
    auto& worker = workers_[static_cast<std::size_t>(local_rank)];
    worker.incarnation = ++incarnations_;
    worker.ignores_term = world_.dice.chance(world_.job.workers.ignores_term_percent);
    worker.is_ending = false;
    worker.takes_stops = world_.stop_dice.chance(world_.job.workers.takes_stops_percent);
    worker.promised.reset();
    set(worker, State::starting);
    const auto start = world_.dice.between(world_.job.workers.start_min, world_.job.workers.start_max);
    world_.clock.after(kPipe + start, &tree_, [this, &worker, local_rank, incarnation = worker.incarnation] {
      if (worker.incarnation != incarnation || worker.state != State::starting) return;
      set(worker, State::working);
      if (worker.takes_stops && !is_abandoned_)
        world_.clock.after(kPipe, &agent_, [this, local_rank] {
          tell_({launcher::WorkerSaidHello{local_rank, false, true}});
        });
      if (world_.is_work_done) end_after(local_rank, world_.dice.between(Duration(0), 200ms), {});
    });
  }
}

void Workers::signal_tree(int signal_number) {
  world_.clock.after(kPipe, &guardian_, [this, signal_number] {
    for (int local_rank = 0; local_rank < count(); ++local_rank) {
      const auto& worker = workers_[static_cast<std::size_t>(local_rank)];
      if (worker.state == State::none || worker.state == State::hung || worker.ignores_term) continue;
      const auto& habits = world_.job.workers;
      const bool fails = world_.dice.chance(habits.fails_when_stopped_percent);
      end_after(local_rank, world_.dice.between(habits.stop_min, habits.stop_max),
                fails ? Ending{Ending::Kind::exited, 1, false} : Ending{Ending::Kind::killed, signal_number, false});
    }
    if (orphans_ > 0 && world_.dice.chance(70)) end_orphan();
    if (world_.job.is_signal_told) tell({launcher::TreeSignalled{signal_number}});
  });
}

void Workers::kill_orphans() {
  world_.clock.after(kPipe, &guardian_, [this] {
    if (orphans_ > 0) end_orphan();
  });
}

void Workers::kill_tree() {
  world_.clock.after(kPipe, &guardian_, [this] {
    for (int local_rank = 0; local_rank < count(); ++local_rank) end_after(local_rank, kill_time(), kKilled);
    if (orphans_ > 0) end_orphan();
  });
}

Duration Workers::kill_time() const {
  if (world_.dice.chance(world_.job.workers.unkillable_percent)) return 40s;
  return world_.dice.between(Duration(500us), Duration(5ms));
}

// The rest of its round, each worker is at some step, and waits before it goes beyond the one that it has promised.
void Workers::prepare_stop(int local_rank) {
  world_.clock.after(kPipe, &tree_, [this, local_rank] {
    auto& worker = workers_[static_cast<std::size_t>(local_rank)];
    if (worker.state != State::working) return;
    if (!worker.promised) worker.promised = static_cast<std::uint64_t>(world_.stop_dice.between(1, 100));
    world_.clock.after(kPipe, &agent_, [this, local_rank, round = round_, call = *worker.promised] {
      tell_call_(local_rank, round, call);
    });
  });
}

void Workers::stop_at(std::uint64_t call) {
  for (int local_rank = 0; local_rank < count(); ++local_rank)
    world_.clock.after(kPipe, &tree_, [this, local_rank, call, round = round_] {
      auto& worker = workers_[static_cast<std::size_t>(local_rank)];
      if (worker.state != State::working || round != round_) return;
      world_.checks.stops_at(round, call, worker.promised);
      if (std::exchange(worker.is_ending, true)) return;
      const auto time = world_.stop_dice.between(Duration(0), world_.job.workers.stop_max);
      world_.clock.after(time, &tree_, [this, &worker, local_rank, incarnation = worker.incarnation] {
        if (worker.incarnation != incarnation || worker.state != State::working) return;
        tell({launcher::WorkerStopping{local_rank}});
        end_after(local_rank, 1ms, {});
      });
    });
}

void Workers::end_all(Action done) {
  done_ = std::move(done);
  kill_tree();
  world_.clock.after(kPipe, &guardian_, [this] { tell_if_empty({}); });
}

void Workers::abandon() {
  is_abandoned_ = true;
  for (int local_rank = 0; local_rank < count(); ++local_rank) end_after(local_rank, kill_time(), kKilled);
}

void Workers::end_after(int local_rank, Duration time, Ending ending) {
  auto& worker = workers_[static_cast<std::size_t>(local_rank)];
  if (worker.state == State::none || worker.state == State::dying) return;
  world_.clock.after(time, &tree_, [this, &worker, local_rank, ending, incarnation = worker.incarnation] {
    if (worker.incarnation == incarnation && worker.state != State::none && worker.state != State::dying)
      end(local_rank, ending);
  });
}

void Workers::fail(int local_rank, Ending ending) {
  auto& worker = workers_[static_cast<std::size_t>(local_rank)];
  if (worker.state == State::none || worker.state == State::dying ||
      (worker.state == State::hung && ending.kind == Ending::Kind::exited))
    return;
  if (world_.dice.chance(world_.job.workers.leaves_orphan_percent)) ++orphans_;
  end(local_rank, ending);
}

void Workers::take_schedulers_signal(int local_rank, int signal_number) {
  const auto& worker = workers_[static_cast<std::size_t>(local_rank)];
  if (worker.state == State::hung || worker.takes_stops || worker.ignores_term) return;
  fail(local_rank, {Ending::Kind::killed, signal_number, false});
}

void Workers::hang(int local_rank) {
  auto& worker = workers_[static_cast<std::size_t>(local_rank)];
  if (worker.state == State::working) set(worker, State::hung);
}

void Workers::die_slowly(int local_rank, Duration time) {
  auto& worker = workers_[static_cast<std::size_t>(local_rank)];
  set(worker, State::dying);
  world_.clock.after(time, &tree_, [this, &worker, local_rank, incarnation = worker.incarnation] {
    if (worker.incarnation == incarnation && worker.state == State::dying) end(local_rank, kKilled);
  });
}

void Workers::end(int local_rank, Ending ending) {
  const auto round = round_;
  set(workers_[static_cast<std::size_t>(local_rank)], State::none);
  world_.trace(agent_.name, " local rank ", local_rank, " ended: ", rendezvous::describe(ending));
  if (ending.is_success()) world_.checks.ends_well(round);
  tell_if_empty({launcher::WorkerEnded{local_rank, ending}});
  world_.worker_ended(round, ending.is_success());
}

void Workers::end_orphan() {
  world_.clock.after(kill_time(), &tree_, [this] {
    if (orphans_ == 0) return;
    --orphans_;
    tell_if_empty({});
  });
}

void Workers::tell_if_empty(std::vector<WorkerGroupEvent> events) {
  const bool is_empty = !is_any_left();
  if (is_empty) events.push_back(launcher::TreeEmpty{});
  if (is_abandoned_) return;
  if (!agent_.is_alive) {
    if (is_empty && done_) world_.clock.at(world_.clock.now(), &guardian_, std::exchange(done_, nullptr));
    return;
  }
  if (!events.empty()) tell(std::move(events));
}

// What the guardian sees is told when it runs, and heard when the agent does.
void Workers::tell(std::vector<WorkerGroupEvent> events) {
  world_.clock.after(kPipe, &guardian_, [this, events = std::move(events)] {
    world_.clock.after(kPipe, &agent_, [this, events] { tell_(events); });
  });
}

bool Workers::is_any_left() const {
  return orphans_ > 0 || std::any_of(workers_.begin(), workers_.end(),
                                     [](const Worker& worker) { return worker.state != State::none; });
}

void Workers::finish_work() {
  for (int local_rank = 0; local_rank < count(); ++local_rank)
    if (does_work(local_rank)) end_after(local_rank, world_.dice.between(Duration(0), 200ms), {});
}

bool Workers::does_work(int local_rank) const {
  return workers_[static_cast<std::size_t>(local_rank)].state == State::working;
}

}  // namespace ddp::simulation
