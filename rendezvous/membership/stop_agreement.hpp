// The agreement of a round's nodes on one step at which all their workers stop.
//
// After a warning each node is asked whether all its workers take part. Once all do, or at once if the job is told to
// stop, each node is asked for the first step that its workers can still stop at. The greatest of these is the step. A
// membership before this one may have told a step to some of the nodes, whose workers may have stopped there. So that
// step stays the step of the round, and if a worker is beyond it, the round has none.
//
// Pure. Nodes are named by their group ranks. Each call says what is to follow. It walks over all nodes only if all of
// them are to be told something.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <variant>
#include <vector>

#include "rendezvous/membership/messages.hpp"

namespace ddp::rendezvous {

class StopAgreement {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  enum class Next { wait, tell_all, give_up };  // tell_all: what message_for() has for each node that runs workers

  // A membership before this one has told a node of the round to stop at this call of should_stop(). It has told more
  // than one only if a node lies.
  void was_told(std::uint64_t call) { told_before_.insert(call); }

  // Asks these nodes, which run workers of the round; again if an answer may be lost, or because a warning has become
  // urgent. is_urgent: the job is told to stop, so nodes answer at once.
  Next ask(const std::vector<int>& group_ranks, bool is_urgent, TimePoint now);

  // `call`: of StopReady. Passed over if the node was not asked, or its workers have ended.
  Next answers(int group_rank, std::optional<std::uint64_t> call, TimePoint now);
  // The workers of the node have ended: nobody waits for its answer.
  Next ends(int group_rank, TimePoint now);

  // Nothing was asked, but for what was told before.
  void give_up();

  bool has_begun() const { return phase_ != Phase::idle; }
  std::optional<std::uint64_t> call() const { return call_; }  // of should_stop(), on which the nodes have agreed

  // When the wait for answers, or for the end of the workers, is over.
  std::optional<TimePoint> deadline() const { return deadline_; }
  void wait_until(std::optional<TimePoint> deadline) { deadline_ = deadline; }

  // What the node has not answered yet, also on another connection. signal_number: 0 after a warning.
  std::optional<std::variant<PrepareStop, StopAt>> message_for(int group_rank, std::uint32_t round,
                                                               int signal_number) const;

 private:
  enum class Phase { idle, asking_who_takes_part, asking_for_calls, agreed };
  struct Answer {
    bool takes_part = false;
    std::optional<std::uint64_t> call{};
  };

  bool is_answered(const Answer& answer) const {
    return phase_ == Phase::asking_for_calls ? answer.call.has_value() : answer.takes_part;
  }
  void count_silent();
  Next ask_for_calls(TimePoint now);
  Next go_on(TimePoint now);

  Phase phase_ = Phase::idle;
  std::map<int, Answer> answers_;  // of nodes that run workers
  std::set<int> silent_;           // of these, nodes that have not answered the present question
  std::optional<std::uint64_t> call_;
  std::set<std::uint64_t> told_before_;
  std::optional<TimePoint> deadline_;
};

}  // namespace ddp::rendezvous
