// The virtual workers of one node, with the messages of their libddp (rendezvous/worker_link), and the guardian that is
// their parent, as launcher/agent/guardian_link.hpp shows it to the agent.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ddp/round.hpp"
#include "launcher/worker_group/worker_group.hpp"
#include "rendezvous/membership/messages.hpp"
#include "rendezvous/worker_link/message.hpp"
#include "tests/simulation/clock.hpp"

namespace ddp::simulation {

class World;

struct WorkerHabits {
  Duration start_min = 5ms, start_max = 50ms;
  Duration stop_min = 1ms, stop_max = 20ms;
  int ignores_term_percent = 0;
  int leaves_orphan_percent = 0;
  int unkillable_percent = 0;          // for longer than anybody waits
  int fails_when_stopped_percent = 0;  // exits with 1 at SIGTERM
  int takes_stops_percent = 0;         // asks should_stop()
  int takes_seats_percent = 0;         // runs in run_elastic: a restart of the job keeps it alive
};

class Workers {
 public:
  using Tell = std::function<void(const std::vector<launcher::WorkerGroupEvent>& events)>;

  using Say = std::function<void(int local_rank, const worker_link::FromWorker& message)>;

  // tree: the workers themselves, which are paused with their host alone. `tell` hears what the guardian reports, `say`
  // what workers say; both are called as events of the agent.
  Workers(World& world, Process& tree, Process& guardian, Process& agent, int count, Tell tell, Say say);

  // --- what the agent asks of its guardian ---
  void spawn(const std::vector<int>& local_ranks, const rendezvous::StartRound& round);
  void signal_worker(int local_rank, int signal_number);
  void kill_worker(int local_rank);
  void signal_tree(int signal_number, const std::vector<int>& spared = {});
  void kill_orphans();
  void kill_tree();

  // --- what the agent says to its workers' libddp ---
  void hear(int local_rank, const worker_link::ToWorker& message);
  void seat(const std::vector<int>& local_ranks, const rendezvous::StartRound& round);
  void tell_not_started(const std::vector<int>& local_ranks);  // by the guardian, which was asked to

  // Takes in all that workers have said, as the agent does before some events.
  void hear_out();

  // The agent has ended: all of it is killed, then `done`.
  void end_all(Action done);
  // So has the guardian: the kernel kills the workers.
  void abandon();

  // --- what happens to them ---
  void fail(int local_rank, launcher::Ending ending);
  void hang(int local_rank);
  // A collective has ended without one of its ranks, which is known where that one hangs: `hung_rank` of the world.
  // gave_up: a rank that has told why it leaves.
  void miss_a_rank(int local_rank, std::optional<int> hung_rank, std::optional<int> gave_up);
  // A collective has ended, and the host of these ranks of the world does not answer.
  void miss_host(int local_rank, const std::vector<int>& ranks);
  void die_slowly(int local_rank, Duration time);                  // it is killed now, and is gone only then
  void take_schedulers_signal(int local_rank, int signal_number);  // who asks should_stop() is not ended by it
  void finish_work();                                              // those that work end well, soon

  int count() const { return static_cast<int>(workers_.size()); }
  bool is_any_left() const;           // of the round; who waits for a seat in the next one is not
  bool is_any_of_group_left() const;  // the same, without what workers have left that ended between two rounds
  bool is_any_waiting() const;
  bool is_any_worker_left() const;  // a process that ddprun started
  bool has_orphans() const;         // of workers of whose end the agent has heard
  // All of them work in this round; the round is that of the last spawn or seat.
  bool do_all_work() const { return working_ == count() && tree_.runs(); }
  bool does_work(int local_rank) const;
  const RoundId& round() const { return start_.round; }
  int rank_first() const { return start_.rank_first; }
  std::uint64_t commits(int local_rank) const { return worker_of(local_rank).commits; }
  std::uint64_t newest_commit() const;  // that a worker has which has not ended; 0: none
  std::uint64_t incarnation(int local_rank) const { return worker_of(local_rank).incarnation; }
  bool takes_seats(int local_rank) const { return worker_of(local_rank).takes_seats; }

 private:
  enum class State { none, starting, working, waiting, hung, dying };
  struct Worker {
    State state = State::none;
    std::uint64_t incarnation = 0;  // of its process
    std::uint64_t seating = 0;      // of its part in a round
    bool ignores_term = false, is_ending = false, takes_stops = false, takes_seats = false;
    bool was_ending = false;                  // when the guardian looked
    std::optional<std::uint64_t> promised{};  // the call of should_stop() that it waits in
    std::uint64_t commits = 0;                // of its ElasticState
  };

  struct Word {
    std::uint64_t number;
    int local_rank;
    worker_link::FromWorker message;
  };

  struct Orphan {
    std::uint64_t number;
    bool is_of_waiting = false;  // its worker had left the round before it ended
    bool is_untold = false;      // the agent has not heard of that end
    bool is_ending = false;
  };

  const Worker& worker_of(int local_rank) const { return workers_[static_cast<std::size_t>(local_rank)]; }
  Worker& worker_of(int local_rank) { return workers_[static_cast<std::size_t>(local_rank)]; }
  void take_part(int local_rank);
  void look_who_is_ending();
  void begin_work(int local_rank);
  void step(int local_rank);
  void after_in_round(int local_rank, Duration time, Action action);
  void say(int local_rank, const worker_link::FromWorker& message);
  void hear_next_word();
  void take(int local_rank, const worker_link::LinkRoundOver& message);
  void take(int local_rank, const worker_link::LinkSeat& message);
  void take(int, const worker_link::LinkStop&) {}  // the signal ends it
  void take(int local_rank, const worker_link::LinkPrepareStop& message);
  void take(int local_rank, const worker_link::LinkStopAt& message);
  void leave(int local_rank, const std::vector<int>& hung_ranks, const std::string& why);
  void say_departure(int local_rank, const std::vector<int>& ranks, const std::vector<int>& unreached);
  // `incarnations`: as many were begun when the guardian was asked; it starts no other before it has signalled those.
  void end_by_signal(int local_rank, int signal_number, std::uint64_t incarnations);
  bool is_any_process_left() const;
  void end_after(int local_rank, Duration time, launcher::Ending ending);
  void end(int local_rank, launcher::Ending ending);
  void leave_orphan(bool is_of_waiting);
  void end_orphan();
  void tell_next(Action hear);
  void answer_if_no_orphan_is_left();
  void tell(std::vector<launcher::WorkerGroupEvent> events);
  void tell_if_empty(std::vector<launcher::WorkerGroupEvent> events);
  void set(Worker& worker, State state);
  void kill(int local_rank);
  Duration kill_time() const;

  World& world_;
  Process& tree_;
  Process& guardian_;
  Process& agent_;
  Tell tell_;
  Say say_;
  std::vector<Worker> workers_;
  rendezvous::StartRound start_{};
  int working_ = 0;
  std::deque<Word> words_;  // that the agent has not taken in
  std::uint64_t words_said_ = 0;
  std::vector<Orphan> orphans_;
  int orphans_asked_ = 0;  // kill_orphans() that have no answer yet
  std::uint64_t incarnations_ = 0, seatings_ = 0, orphans_left_ = 0;
  bool has_looked_ = false;  // who is ending
  bool is_abandoned_ = false;
  Action done_;
};

}  // namespace ddp::simulation
