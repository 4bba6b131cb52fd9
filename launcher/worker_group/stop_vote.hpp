// Finds out at which step the workers of this node can stop: whom to ask for it, and when to answer membership.
//
// Pure: what was asked and answered comes in, what to do is read off. A worker answers with the next call of
// should_stop() that can still say yes, and waits in that call for the step that the whole job agrees on.
//
// The rules: membership's question is answered with the greatest answer of the workers, once all of those that run have
// answered; what one said that has ended since counts too, because the others may be as far. If some worker takes no
// part, it is answered at once so. A warning is answered with 0 once all take part, and no worker is asked. Asked
// again, it asks them again.
//
// Threads: one caller at a time (the agent's event loop).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace ddp::launcher {

// A worker that has not ended.
struct Voter {
  int local_rank = 0;
  bool takes_stops = false;
  bool operator==(const Voter&) const = default;
};

class StopVote {
 public:
  struct Answer {
    std::optional<std::uint64_t> call;  // empty: some worker takes no part; 0: to a warning, all do
    bool operator==(const Answer&) const = default;
  };
  struct Step {
    std::vector<int> ask;          // local ranks
    std::optional<Answer> answer;  // to membership, now
    bool operator==(const Step&) const = default;
  };

  void begin_round() { *this = {}; }

  // Membership's question.
  void ask(bool is_warning);

  // A worker's answer.
  void answer(int local_rank, std::uint64_t call) { calls_[local_rank] = call; }

  // What follows from all that is known, `running` being all workers that have not ended. To be called after each
  // change; nothing is returned twice.
  [[nodiscard]] Step next(const std::vector<Voter>& running);

 private:
  bool is_open_ = false;  // the question waits for its answer
  bool is_warning_ = false;
  std::set<int> asked_;
  std::map<int, std::uint64_t> calls_;
};

}  // namespace ddp::launcher
