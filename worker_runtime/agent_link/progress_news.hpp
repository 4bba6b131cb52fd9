// What of a process's progress its agent is to hear, and when: what is new in a round at once, the rest once a second.
//
// Pure. Each message says all there is to say, so one that is left out is made up for by the next; a change that came
// too soon after a message goes out with the first call that comes late enough, and needs no timer.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "rendezvous/worker_link/message.hpp"

namespace ddp::agent_link {

struct Known {
  bool has_stepped = false;  // in the present round
  std::optional<std::uint64_t> commits{};
  std::optional<std::uint64_t> checkpoint_step{};
};

class ProgressNews {
 public:
  using Clock = std::chrono::steady_clock;
  using Message = std::optional<worker_link::LinkProgress>;

  static constexpr std::chrono::seconds kInterval{1};

  void begin_round(std::uint32_t round) {
    told_ = worker_link::LinkProgress{.round = round};
    commits_ = checkpoints_ = Changes{};
  }

  // Nothing is said outside a round.
  Message take(const Known& known, Clock::time_point now) {
    if (!told_) return {};
    const worker_link::LinkProgress progress{told_->round, known.has_stepped, known.commits, known.checkpoint_step};
    if (progress == *told_) return {};
    const bool is_news = progress.has_stepped != told_->has_stepped ||
                         commits_.is_first(told_->commits, progress.commits) ||
                         checkpoints_.is_first(told_->checkpoint_step, progress.checkpoint_step);
    if (!is_news && now < last_ + kInterval) return {};
    commits_.count(told_->commits, progress.commits);
    checkpoints_.count(told_->checkpoint_step, progress.checkpoint_step);
    told_ = progress;
    last_ = now;
    return progress;
  }

 private:
  // Of one number in a round. News is the one with which the round begins, and then the first that the round itself
  // brings.
  struct Changes {
    using Number = std::optional<std::uint64_t>;
    int told = 0;
    bool is_first(const Number& before, const Number& now) const { return before != now && told < 2; }
    void count(const Number& before, const Number& now) { told += before != now ? 1 : 0; }
  };

  std::optional<worker_link::LinkProgress> told_;  // empty before the first round
  Clock::time_point last_;                         // when; of no meaning before the first
  Changes commits_, checkpoints_;
};

}  // namespace ddp::agent_link
