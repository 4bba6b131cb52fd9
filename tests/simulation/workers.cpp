#include "tests/simulation/workers.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <utility>

#include "tests/simulation/world.hpp"

namespace ddp::simulation {

using launcher::Ending;
using launcher::WorkerGroupEvent;

namespace {

constexpr Duration kPipe = 100us;  // between the agent and its guardian
constexpr Duration kStepMax = 1s;
constexpr Ending kKilled{Ending::Kind::killed, SIGKILL, false};

// As they go over the socket, where histories want that.
template <typename Message, typename Parse>
Message through_text(const Message& message, bool as_json, Parse parse) {
  return as_json ? parse(worker_link::encode(message)).value() : message;
}

}  // namespace

Workers::Workers(World& world, Process& tree, Process& guardian, Process& agent, int count, Tell tell, Say say)
    : world_(world),
      tree_(tree),
      guardian_(guardian),
      agent_(agent),
      tell_(std::move(tell)),
      say_(std::move(say)),
      workers_(static_cast<std::size_t>(count)) {}

void Workers::set(Worker& worker, State state) {
  const bool did_work = worker.state == State::working, does_work = state == State::working;
  worker.state = state;
  if (did_work == does_work) return;
  working_ += does_work ? 1 : -1;
  world_.workers_changed();
}

// --- a round begins for them ---

void Workers::spawn(const std::vector<int>& local_ranks, const rendezvous::StartRound& round) {
  start_ = round;
  world_.clock.after(kPipe, &guardian_, [this] { has_looked_ = false; });  // after signals to the round before
  for (const int local_rank : local_ranks) {
    auto& worker = worker_of(local_rank);
    worker.incarnation = ++incarnations_;
    worker.commits = 0;
    worker.ignores_term = world_.dice.chance(world_.job.workers.ignores_term_percent);
    worker.takes_stops = world_.stop_dice.chance(world_.job.workers.takes_stops_percent);
    worker.takes_seats = world_.seat_dice.chance(world_.job.workers.takes_seats_percent);
    take_part(local_rank);
    const auto start = world_.dice.between(world_.job.workers.start_min, world_.job.workers.start_max);
    after_in_round(local_rank, kPipe + start, [this, local_rank] { begin_work(local_rank); });
  }
}

void Workers::tell_not_started(const std::vector<int>& local_ranks) {
  std::vector<WorkerGroupEvent> events;
  for (const int local_rank : local_ranks)
    events.emplace_back(launcher::WorkerEnded{local_rank, {Ending::Kind::not_started, ENOENT, false}});
  tell_if_empty(std::move(events));
}

void Workers::seat(const std::vector<int>& local_ranks, const rendezvous::StartRound& round) {
  start_ = round;
  for (const int local_rank : local_ranks)
    hear(local_rank, worker_link::LinkSeat{{{"RANK", std::to_string(round.rank_first + local_rank)},
                                            {"WORLD_SIZE", std::to_string(round.world_size)}}});
}

void Workers::take(int local_rank, const worker_link::LinkSeat&) {
  if (worker_of(local_rank).state != State::waiting) return;
  take_part(local_rank);
  after_in_round(local_rank, world_.seat_dice.between(world_.job.workers.start_min, world_.job.workers.start_max),
                 [this, local_rank] { begin_work(local_rank); });
}

void Workers::take_part(int local_rank) {
  auto& worker = worker_of(local_rank);
  worker.seating = ++seatings_;
  worker.is_ending = worker.was_ending = false;
  worker.promised.reset();
  set(worker, State::starting);
}

void Workers::begin_work(int local_rank) {
  auto& worker = worker_of(local_rank);
  if (worker.state != State::starting) return;
  set(worker, State::working);
  if (worker.takes_stops || worker.takes_seats)
    say(local_rank, worker_link::LinkHello{worker_link::kVersion, worker.takes_seats, worker.takes_stops});
  if (worker.takes_seats) step(local_rank);
  if (world_.is_work_done) end_after(local_rank, world_.dice.between(Duration(0), 200ms), {});
}

// It commits once in a round, as soon as a collective of the round completes.
void Workers::step(int local_rank) {
  after_in_round(local_rank, world_.seat_dice.between(Duration(1ms), kStepMax), [this, local_rank] {
    auto& worker = worker_of(local_rank);
    if (worker.state != State::working) return;
    if (!world_.checks.is_complete(round())) return step(local_rank);
    worker.commits = world_.commits_of(round());
    say(local_rank, worker_link::LinkProgress{round().number, true, worker.commits, {}});
  });
}

std::uint64_t Workers::newest_commit() const {
  std::uint64_t newest = 0;
  for (const auto& worker : workers_)
    if (worker.state != State::none && worker.state != State::dying) newest = std::max(newest, worker.commits);
  return newest;
}

// Unless the worker has ended meanwhile, or has left the round.
void Workers::after_in_round(int local_rank, Duration time, Action action) {
  auto& worker = worker_of(local_rank);
  world_.clock.after(time, &tree_, [&worker, seating = worker.seating, action = std::move(action)] {
    if (worker.seating == seating && worker.state != State::none && worker.state != State::waiting) action();
  });
}

// --- what the agent asks of its guardian ---

// At the first failure, and before any signal.
void Workers::look_who_is_ending() {
  if (std::exchange(has_looked_, true)) return;
  for (auto& worker : workers_) worker.was_ending = worker.state == State::dying;
}

void Workers::signal_tree(int signal_number, const std::vector<int>& spared) {
  world_.clock.after(kPipe, &guardian_, [this, signal_number, spared, incarnations = incarnations_] {
    look_who_is_ending();
    for (int local_rank = 0; local_rank < count(); ++local_rank)
      if (std::find(spared.begin(), spared.end(), local_rank) == spared.end())
        end_by_signal(local_rank, signal_number, incarnations);
    if (!orphans_.empty() && world_.dice.chance(70)) end_orphan();
    if (world_.job.is_signal_told) tell({launcher::TreeSignalled{signal_number}});
  });
}

void Workers::signal_worker(int local_rank, int signal_number) {
  world_.clock.after(kPipe, &guardian_, [this, local_rank, signal_number, incarnations = incarnations_] {
    look_who_is_ending();
    end_by_signal(local_rank, signal_number, incarnations);
  });
}

void Workers::end_by_signal(int local_rank, int signal_number, std::uint64_t incarnations) {
  const auto& worker = worker_of(local_rank);
  if (worker.state == State::none || worker.state == State::hung || worker.ignores_term) return;
  if (worker.incarnation > incarnations) return;
  const auto& habits = world_.job.workers;
  const bool fails = world_.dice.chance(habits.fails_when_stopped_percent);
  end_after(local_rank, world_.dice.between(habits.stop_min, habits.stop_max),
            fails ? Ending{Ending::Kind::exited, 1, false} : Ending{Ending::Kind::killed, signal_number, false});
}

// Where no worker lives on, what is left of orphans is found by kill_tree().
void Workers::kill_orphans() {
  world_.clock.after(kPipe, &guardian_, [this] {
    ++orphans_asked_;
    const auto ended = std::min(orphans_.size(), world_.job.workers.takes_seats_percent > 0 ? SIZE_MAX : 1);
    for (std::size_t i = 0; i < ended; ++i) end_orphan();
    answer_if_no_orphan_is_left();
  });
}

void Workers::answer_if_no_orphan_is_left() {
  if (!orphans_.empty()) return;
  for (; orphans_asked_ > 0; --orphans_asked_) tell({launcher::OrphansGone{}});
}

void Workers::kill_worker(int local_rank) {
  world_.clock.after(kPipe, &guardian_, [this, local_rank] {
    look_who_is_ending();
    kill(local_rank);
  });
}

void Workers::kill_tree() {
  world_.clock.after(kPipe, &guardian_, [this] {
    look_who_is_ending();
    for (int local_rank = 0; local_rank < count(); ++local_rank) kill(local_rank);
    if (!orphans_.empty()) end_orphan();
  });
}

// However long the kernel takes to end it, it runs no instruction of its own any more.
void Workers::kill(int local_rank) {
  const auto time = kill_time();
  const bool takes_long = time > 1s;
  if (takes_long && does_work(local_rank)) return die_slowly(local_rank, time);
  end_after(local_rank, time, kKilled);
}

Duration Workers::kill_time() const {
  if (world_.dice.chance(world_.job.workers.unkillable_percent)) return 40s;
  return world_.dice.between(Duration(500us), Duration(5ms));
}

// --- their libddp ---

void Workers::say(int local_rank, const worker_link::FromWorker& message) {
  if (is_abandoned_) return;
  words_.push_back({++words_said_, local_rank, message});
  world_.clock.after(kPipe, &agent_, [this, number = words_said_] {
    if (!words_.empty() && words_.front().number == number) hear_next_word();
  });
}

void Workers::hear_next_word() {
  const auto word = std::move(words_.front());
  words_.pop_front();
  say_(word.local_rank, through_text(word.message, world_.job.network.as_json, worker_link::parse_from_worker));
}

void Workers::hear_out() {
  while (!words_.empty()) hear_next_word();
}

void Workers::hear(int local_rank, const worker_link::ToWorker& message) {
  world_.clock.after(kPipe, &tree_, [this, local_rank, message, incarnation = worker_of(local_rank).incarnation] {
    const auto& worker = worker_of(local_rank);
    const bool hears =
        worker.state == State::starting || worker.state == State::working || worker.state == State::waiting;
    if (worker.incarnation != incarnation || !hears) return;
    std::visit([&](const auto& what) { take(local_rank, what); },
               through_text(message, world_.job.network.as_json, worker_link::parse_to_worker));
  });
}

// Who ignores SIGTERM does not leave either, until it is killed.
void Workers::take(int local_rank, const worker_link::LinkRoundOver& message) {
  const auto& worker = worker_of(local_rank);
  const auto& habits = world_.job.workers;
  if (worker.state == State::waiting || !worker.takes_seats || message.round != round().number || worker.ignores_term)
    return;
  const auto time = world_.seat_dice.between(habits.stop_min, habits.stop_max);
  if (world_.seat_dice.chance(habits.fails_when_stopped_percent))
    return end_after(local_rank, time, {Ending::Kind::exited, 1, false});
  after_in_round(local_rank, time, [this, local_rank] { leave(local_rank, {}, "the round is over"); });
}

// The rest of its round, each worker is at some step, and waits before it goes beyond the one that it has promised.
void Workers::take(int local_rank, const worker_link::LinkPrepareStop&) {
  auto& worker = worker_of(local_rank);
  if (worker.state != State::working) return;
  if (!worker.promised) worker.promised = static_cast<std::uint64_t>(world_.stop_dice.between(1, 100));
  say(local_rank, worker_link::LinkStopReady{round().number, *worker.promised});
}

void Workers::take(int local_rank, const worker_link::LinkStopAt& message) {
  auto& worker = worker_of(local_rank);
  if (worker.state != State::working || message.round != round().number) return;
  world_.checks.stops_at(round(), message.call, worker.promised);
  if (std::exchange(worker.is_ending, true)) return;
  const auto time = world_.stop_dice.between(Duration(0), world_.job.workers.stop_max);
  after_in_round(local_rank, time, [this, local_rank] {
    if (worker_of(local_rank).state != State::working) return;
    say(local_rank, worker_link::LinkStopping{round().number});
    end_after(local_rank, 1ms, {});
  });
}

// Its peers miss it then.
void Workers::leave(int local_rank, const std::vector<int>& hung_ranks, const std::string& why) {
  auto& worker = worker_of(local_rank);
  if (worker.state != State::starting && worker.state != State::working) return;
  const auto left = round();
  const bool was_in_call = worker.state == State::working;
  world_.trace(agent_.name, " local rank ", local_rank, " leaves the round: ", why);
  set(worker, State::waiting);
  say(local_rank, worker_link::LinkLeft{left.number, hung_ranks, why, was_in_call});
  world_.worker_ended(left, false);
}

void Workers::say_departure(int local_rank, const std::vector<int>& ranks, const std::vector<int>& unreached) {
  const auto& worker = worker_of(local_rank);
  worker_link::Departure departure{round().number, worker_link::Departure::Kind::for_others, ranks,
                                   "a rank is missing"};
  departure.unreached = unreached;
  departure.was_in_call = true;
  say(local_rank, worker_link::LinkHello{worker_link::kVersion, worker.takes_seats, worker.takes_stops, departure});
}

void Workers::miss_host(int local_rank, const std::vector<int>& ranks) {
  say_departure(local_rank, ranks, ranks);
  if (!worker_of(local_rank).takes_seats) return fail(local_rank, {Ending::Kind::exited, 1, false});
  leave(local_rank, ranks, "a host does not answer");
}

void Workers::miss_a_rank(int local_rank, std::optional<int> hung_rank, std::optional<int> gave_up) {
  if (gave_up) say_departure(local_rank, {*gave_up}, {});
  if (!worker_of(local_rank).takes_seats) return fail(local_rank, {Ending::Kind::exited, 1, false});
  leave(local_rank, hung_rank ? std::vector<int>{*hung_rank} : std::vector<int>(),
        hung_rank ? "rank " + std::to_string(*hung_rank) + " does not come" : "a rank is gone");
}

// --- ends ---

void Workers::end_all(Action done) {
  done_ = std::move(done);
  kill_tree();
  world_.clock.after(kPipe, &guardian_, [this] { tell_if_empty({}); });
}

void Workers::abandon() {
  is_abandoned_ = true;
  for (int local_rank = 0; local_rank < count(); ++local_rank) kill(local_rank);
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
  if (world_.dice.chance(world_.job.workers.leaves_orphan_percent)) leave_orphan(worker.state == State::waiting);
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
  const auto round = start_.round;
  auto& worker = workers_[static_cast<std::size_t>(local_rank)];
  const bool is_first = !ending.is_success() && !has_looked_;
  const bool was_ending = std::exchange(worker.was_ending, false) || is_first;
  set(worker, State::none);
  if (!ending.is_success()) look_who_is_ending();
  world_.trace(agent_.name, " local rank ", local_rank, " ended: ", rendezvous::describe(ending));
  if (ending.is_success()) world_.checks.ends_well(round);
  tell_if_empty({launcher::WorkerEnded{local_rank, ending, was_ending}});
  world_.worker_ended(round, ending.is_success());
}

void Workers::leave_orphan(bool is_of_waiting) {
  const auto number = ++orphans_left_;
  orphans_.push_back({number, is_of_waiting, is_of_waiting});
  if (is_of_waiting)
    tell_next([this, number] {  // just before the end itself
      for (auto& orphan : orphans_)
        if (orphan.number == number) orphan.is_untold = false;
    });
}

// The first one that is not being ended yet.
void Workers::end_orphan() {
  auto next = std::find_if(orphans_.begin(), orphans_.end(), [](const Orphan& orphan) { return !orphan.is_ending; });
  if (next == orphans_.end()) next = orphans_.begin();
  next->is_ending = true;
  world_.clock.after(kill_time(), &tree_, [this, number = next->number] {
    if (std::erase_if(orphans_, [&](const Orphan& orphan) { return orphan.number == number; }) == 0) return;
    tell_if_empty({});
    answer_if_no_orphan_is_left();
  });
}

void Workers::tell_if_empty(std::vector<WorkerGroupEvent> events) {
  const bool is_empty = !is_any_process_left();
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
  tell_next([this, events = std::move(events)] { tell_(events); });
}

void Workers::tell_next(Action hear) {
  world_.clock.after(kPipe, &guardian_, [this, hear = std::move(hear)] { world_.clock.after(kPipe, &agent_, hear); });
}

bool Workers::is_any_left() const { return !orphans_.empty() || is_any_of_group_left(); }

bool Workers::has_orphans() const {
  return std::any_of(orphans_.begin(), orphans_.end(), [](const Orphan& orphan) { return !orphan.is_untold; });
}

bool Workers::is_any_of_group_left() const {
  return std::any_of(orphans_.begin(), orphans_.end(), [](const Orphan& orphan) { return !orphan.is_of_waiting; }) ||
         std::any_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
           return worker.state != State::none && worker.state != State::waiting;
         });
}

bool Workers::is_any_worker_left() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [](const Worker& worker) { return worker.state != State::none; });
}

bool Workers::is_any_waiting() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [](const Worker& worker) { return worker.state == State::waiting; });
}

bool Workers::is_any_process_left() const { return is_any_left() || is_any_waiting(); }

void Workers::finish_work() {
  for (int local_rank = 0; local_rank < count(); ++local_rank)
    if (does_work(local_rank)) end_after(local_rank, world_.dice.between(Duration(0), 200ms), {});
}

bool Workers::does_work(int local_rank) const {
  return workers_[static_cast<std::size_t>(local_rank)].state == State::working;
}

}  // namespace ddp::simulation
