#include "worker_runtime/agent_link/seats.hpp"

#include <utility>

#include "ddp/error.hpp"

namespace ddp::agent_link {

void Seats::enter(std::uint32_t round, RoundOverHandler over) {
  const std::lock_guard lock(mutex_);
  round_ = round;
  over_ = std::move(over);
  if (last_over_ && last_over_->round == round) over_(last_over_->why);
}

void Seats::leave() {
  const std::lock_guard lock(mutex_);
  round_.reset();
  over_ = nullptr;
}

std::map<std::string, std::string> Seats::wait(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, limit, [&] { return seat_ || end_; }))
    throw TimeoutError(
        "ddprun gave this process no part in a next round within " + std::to_string(limit.count()) +
        " ms\ntry:   look at ddprun's output; ElasticOptions::seat_timeout is to be longer than its join_timeout");
  if (end_) throw AbortedError("the job ends: " + *end_);
  return std::exchange(seat_, std::nullopt)->variables;
}

void Seats::take(const worker_link::LinkRoundOver& message) {
  const std::lock_guard lock(mutex_);
  last_over_ = message;
  if (round_ == message.round) over_(message.why);
}

void Seats::take(const worker_link::LinkSeat& message) {
  const std::lock_guard lock(mutex_);
  seat_ = message;
  changed_.notify_all();
}

void Seats::take(const worker_link::LinkStop& message) {
  const std::lock_guard lock(mutex_);
  end(message.why.empty() ? "it was stopped" : message.why);
}

void Seats::lose_agent() {
  const std::lock_guard lock(mutex_);
  end(end_.value_or("ddprun has ended, or does not listen to this process any more"));
}

// With the mutex held.
void Seats::end(const std::string& why) {
  end_ = why;
  changed_.notify_all();
}

}  // namespace ddp::agent_link
