// What became of a job, round by round: why each began, and where the time between two rounds went.
//
// Pure: the time comes in with each call. Times are on the job's clock, which begins with membership.
//
// Threads: one caller at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace ddp::rendezvous {

// One round. What is empty has not happened, or nobody told of it.
struct RoundTimes {
  std::uint32_t round = 0;  // its number
  std::string why;          // what ended the round before; empty for the first
  int nodes = 0, world_size = 0;
  // The way to it, one part after the other.
  std::chrono::milliseconds detect{0};      // from the failure until membership knew of it
  std::chrono::milliseconds stop{0};        // until no worker of the round before was left, or all of them had left it
  std::chrono::milliseconds rendezvous{0};  // until nodes were told to begin: waiting for nodes, the store
  std::optional<std::chrono::milliseconds> start;  // until every worker was started, or had its seat
  std::optional<std::chrono::milliseconds>
      first_step;                       // until every node had finished a step, where workers tell of steps
  std::chrono::milliseconds worked{0};  // from the last of these that is known until its end was called for
  // The part of `worked` after the newest commit or checkpoint, which later rounds do again; empty: nobody told, or no
  // round followed.
  std::optional<std::chrono::milliseconds> lost{};
  bool operator==(const RoundTimes&) const = default;
};

constexpr std::size_t kRoundsReportedMax = 32;  // the newest; what is told to a node is bounded

struct RunReport {
  std::chrono::milliseconds total{0};   // since membership began
  std::chrono::milliseconds worked{0};  // in all rounds
  int rounds_count = 0;                 // of which the newest kRoundsReportedMax follow
  std::vector<RoundTimes> rounds;
  // Of `worked`, what came after the first step of its round and was not lost. Empty where workers do not tell of
  // steps, or where steps were lost and nobody told how many.
  std::optional<std::chrono::milliseconds> useful{};
  bool operator==(const RunReport&) const = default;

  // The share of the run that was useful, 0 to 1.
  std::optional<double> goodput() const {
    if (!useful || total.count() <= 0) return {};
    return static_cast<double>(useful->count()) / static_cast<double>(total.count());
  }
};

// Keeps the book of a run. Calls that do not fit the present state, such as a second first step, are passed over.
class RunBook {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit RunBook(TimePoint now) : began_(now), mark_(now) {}

  // The round under way has to end: membership knows of it now, it happened at `happened`.
  void end_called(TimePoint happened, TimePoint now);
  void all_ended(TimePoint now);
  void begun(std::uint32_t round, const std::string& why, int nodes, int world_size, TimePoint now);
  void all_started(TimePoint now);
  void first_step(TimePoint now);

  // Before all_ended(): the workers tell of what they keep, and have kept something last at `at` (empty: nothing in
  // this round). Not called: they keep nothing, or do not tell of it.
  void kept(std::optional<TimePoint> at) {
    keeps_ = true;
    kept_at_ = at;
  }

  RunReport at(TimePoint now) const;

  // The round before the one that has begun last, complete; null: there is none.
  const RoundTimes* round_before() const { return rounds_.size() > 1 ? &rounds_[rounds_.size() - 2] : nullptr; }

 private:
  enum class Phase { waiting, stopping, starting, started, working };

  // Another round follows the last one, and does again what that one has not kept.
  void note_lost();

  std::chrono::milliseconds since_mark(TimePoint now) const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(now - mark_);
  }

  TimePoint began_, mark_;  // when the present phase began
  TimePoint worked_until_;  // in the last round that has ended
  Phase phase_ = Phase::waiting;
  RoundTimes way_;  // to the next round
  std::deque<RoundTimes> rounds_;
  std::chrono::milliseconds worked_{0};
  int rounds_count_ = 0;
  std::optional<TimePoint> kept_at_;
  bool keeps_ = false;
  std::chrono::milliseconds useful_{0};  // of the rounds before the last one
  bool tells_of_steps_ = false, is_useful_known_ = true;
};

}  // namespace ddp::rendezvous
