// The operations that a group has under way, in the order of their calls, where a device does them: which one is done
// next, which is late, how far the rank has come.
//
// Op is an Operation with what the backend needs of it besides. Calls are made one at a time: submit() to launch() of
// one operation come before those of the next.
//
// Pure: the time goes in. Threads: one caller at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/deadline.hpp"
#include "worker_runtime/core/failure/failure.hpp"
#include "worker_runtime/core/failure/fingerprint.hpp"
#include "worker_runtime/core/failure/rank_progress.hpp"
#include "worker_runtime/core/operation/operation.hpp"

namespace ddp::core {

template <class Op>
class OperationLine {
 public:
  // rank: of this process in the group
  explicit OperationLine(int rank) : rank_(rank) {}

  void submit(std::shared_ptr<Op> operation) {
    before_ = std::exchange(last_, {operation->ticket().collective_sequence, operation->first_call()});
    operations_.push_back(std::move(operation));
  }

  // A collective that has come to its end before the next call, and is not in the line: "split".
  void note(const char* name, std::uint64_t number) { last_ = {.number = number, .name = name}; }

  // Requires the newest one, not launched: nothing of it was begun. It has no number then.
  void take_back(Op& operation) {
    static_cast<void>(operation.life.refuse());
    std::erase_if(operations_, [&](const auto& other) { return other.get() == &operation; });
    last_ = before_;
  }

  // The device has it. From now on the deadline is the line's.
  static void launch(Op& operation) { operation.is_launched = true; }

  // Says that the device has come to it. Whether that is news.
  bool start(Op& operation) {
    if (!operation.life.start()) return false;
    last_started_ = std::max(last_started_, operation.number());
    return true;
  }

  // Says that the oldest one, which has started, is done. False if a failure has ended it before.
  bool complete(Op& operation) {
    if (!operation.life.complete()) return false;
    last_completed_ = std::max(last_completed_, operation.number());
    operations_.pop_front();
    return true;
  }

  // The group has failed: all end. Returns them, the oldest first.
  std::deque<std::shared_ptr<Op>> fail_all() {
    for (const auto& operation : operations_) static_cast<void>(operation->life.fail());
    return std::exchange(operations_, {});
  }

  std::size_t size() const { return operations_.size(); }
  bool is_empty() const { return operations_.empty(); }
  std::shared_ptr<Op> oldest() const { return operations_.empty() ? nullptr : operations_.front(); }

  // What an abort has to wait for: those behind it wait for what the callers' streams hold. Null: none.
  std::shared_ptr<Op> newest_started() const {
    const auto found = std::find_if(operations_.rbegin(), operations_.rend(),
                                    [](const auto& operation) { return operation->life.has_started(); });
    return found == operations_.rend() ? nullptr : *found;
  }

  // The failure if an operation is late: that of the oldest one, which the others wait for, within the late one's time.
  std::optional<Failure> late(base::Deadline::TimePoint now) {
    const auto found = std::find_if(operations_.begin(), operations_.end(),
                                    [&](const auto& operation) { return is_late(operation->deadline, now); });
    if (found == operations_.end()) return std::nullopt;
    Failure failure = operations_.front()->failure(Cause::timed_out, rank_);
    failure.limit = (*found)->deadline.full_time();
    return failure;
  }

  // A rank has left the group in good order. `departure.number` is that of its last collective: those after it wait in
  // vain.
  void depart(Failure departure) { departure_ = std::move(departure); }

  // That departure, once an operation waits in vain.
  std::optional<Failure> departure_in_vain() const {
    if (!departure_) return std::nullopt;
    const bool is_in_vain = std::any_of(operations_.begin(), operations_.end(), [&](const auto& operation) {
      return operation->number() > departure_->number;
    });
    return is_in_vain ? departure_ : std::nullopt;
  }

  // What the other ranks are told of this one.
  RankProgress progress() const {
    RankProgress progress{.called = last_.number, .started = last_started_, .completed = last_completed_};
    for (const auto& operation : operations_) {
      if (operation->is_point_to_point()) continue;
      progress.oldest = operation->number();
      progress.operation = operation->describe();
      return progress;
    }
    if (progress.called > 0) progress.operation = last_.name ? last_.name : describe(fingerprint_of(last_.call));
    if (last_.name != nullptr && progress.completed < progress.called) progress.oldest = progress.called;
    return progress;
  }

 private:
  struct Called {
    std::uint64_t number = 0;  // of the last collective
    Collective call{};
    const char* name = nullptr;  // of what is no Collective
  };

  // A late look may mean that the process was stopped, but also that a driver held this thread up: so only once.
  static bool is_late(base::Deadline& deadline, base::Deadline::TimePoint now) {
    return deadline.stopped_at() ? now >= deadline.end() : deadline.passed(now);
  }

  int rank_;
  std::deque<std::shared_ptr<Op>> operations_;
  Called last_, before_;            // the last call, for messages, and the one before
  std::uint64_t last_started_ = 0;  // numbers of collectives
  std::uint64_t last_completed_ = 0;
  std::optional<Failure> departure_;
};

}  // namespace ddp::core
