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
#include <optional>
#include <vector>

#include "launcher/worker_group/worker.hpp"

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
  struct Next {
    std::vector<int> ask;          // local ranks
    std::optional<Answer> answer;  // to membership, now
    bool operator==(const Next&) const = default;
  };

  void begin_round() { *this = {}; }

  // Membership asks. Clears the answers to an earlier question that is already answered.
  void ask(bool is_warning, Workers& workers);

  // What to do now. The workers answer by Worker::stop_call; `running` lists the workers that have not ended. Call it
  // after each change; it returns nothing twice.
  [[nodiscard]] Next next(const std::vector<Voter>& running, Workers& workers);

 private:
  bool is_open_ = false;  // the question waits for its answer
  bool is_warning_ = false;
};

}  // namespace ddp::launcher
