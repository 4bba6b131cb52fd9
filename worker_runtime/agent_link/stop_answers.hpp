// What this process answers when the agent asks at which step it can stop: in which round the calls of should_stop()
// count, and which question is still to be answered.
//
// Threads: one caller at a time, but ask() from any, at any time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "rendezvous/worker_link/message.hpp"
#include "worker_runtime/agent_link/stop_point.hpp"

namespace ddp::agent_link {

class StopAnswers {
 public:
  // From now on calls count in this round, from 1. False if they count in it already: then nothing changes.
  bool begin_round(std::uint32_t round) {
    if (is_in(round)) return false;
    round_ = round;
    has_said_stopping_ = false;
    point_.begin_round();
    return true;
  }

  bool is_in(std::uint32_t round) const { return round_ == round; }

  // To the last question; empty if that is about another round, or there was none. A question may come before the
  // process has a group of its round: it is answered then. Asked again, the answer is the same.
  std::optional<worker_link::LinkStopReady> answer() {
    if (!question_ || !is_in(question_->round)) return {};
    return worker_link::LinkStopReady{question_->round, point_.prepare()};
  }

  // One call of should_stop(); see StopPoint::ask().
  bool ask(std::chrono::milliseconds limit) { return point_.ask(limit); }

  // Whether this is the first stop of the round, which the agent is to hear of.
  bool is_first_stop() { return !std::exchange(has_said_stopping_, true); }

  void take(const worker_link::LinkPrepareStop& question) { question_ = question; }
  void take(const worker_link::LinkStopAt& decision) {
    if (is_in(decision.round)) point_.decide(decision.call);
  }
  void take(const worker_link::LinkRoundOver& over) {
    if (is_in(over.round)) point_.give_up();
  }

  // There will be no decision, unless there is one already.
  void give_up() { point_.give_up(); }

 private:
  std::optional<std::uint32_t> round_;
  std::optional<worker_link::LinkPrepareStop> question_;  // the last one
  bool has_said_stopping_ = false;                        // in round_
  StopPoint point_;                                       // has a mutex of its own
};

}  // namespace ddp::agent_link
