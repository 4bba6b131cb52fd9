#include "tests/simulation/blame.hpp"

#include "tests/simulation/checks.hpp"

namespace ddp::simulation {

using namespace rendezvous;

void Blame::is_told(const ToAgent& message, int changes_of_members) {
  if (killed_ && killed_->changes_of_members != changes_of_members) forget();
  if (!killed_) return;
  const auto name = "rank " + std::to_string(killed_->rank);
  const auto wrong = [&](const std::string& named) {
    return Violation(name + " of round " + to_string(killed_->round) + " was killed, and the cause is said to be '" +
                     named + "'");
  };
  if (const auto* start = std::get_if<StartRound>(&message); start != nullptr && killed_->round < start->round) {
    const auto why = start->why.value_or("");
    const bool is_about_a_rank = why.rfind("rank ", 0) == 0;
    if (is_about_a_rank && why.rfind(name + " ", 0) != 0) throw wrong(why);
    times_right_ += is_about_a_rank;
    forget();
  } else if (const auto* finish = std::get_if<FinishJob>(&message)) {
    // A membership that was frozen ends a round that the others have left behind.
    if (finish->cause && finish->cause->round != killed_->round.number) return;
    if (finish->cause &&
        (finish->cause->host != killed_->host_name || finish->cause->local_rank != killed_->local_rank))
      throw wrong(describe_failure(*finish->cause));
    times_right_ += finish->cause.has_value();
    forget();
  }
}

}  // namespace ddp::simulation
