// The part of Group that deals with its failure.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "worker_runtime/backends/nccl/event_wait.hpp"
#include "worker_runtime/backends/nccl/group.hpp"
#include "worker_runtime/core/failure/fingerprint.hpp"
#include "worker_runtime/core/failure/judge.hpp"

namespace ddp::nccl_backend {

namespace {

using process_group::AbortCause;
using process_group::Collective;

constexpr const char* kLeftInGoodOrder = "in good order";
constexpr std::chrono::milliseconds kAllFailLimit{100};  // for the living to know that the group has failed
constexpr std::chrono::milliseconds kAnswerLimit{500};   // for what other ranks say; one that is dead never does

std::string describe_call(const Collective& call) { return describe(core::fingerprint_of(call)); }

// NCCL logs to stdout, which holds back what goes to a file or a pipe: a process that is killed would take it along.
void flush_log() {
  if (::ftrylockfile(stdout) != 0) return;  // somebody is writing there, maybe for long
  static_cast<void>(::fflush_unlocked(stdout));
  ::funlockfile(stdout);
}

// Whether this rank knows by itself all there is to say.
bool is_own_doing(const Failure& failure, int rank) {
  if (failure.cause == Cause::round_over) return true;
  const bool is_deed =
      failure.cause == Cause::aborted || failure.cause == Cause::left || failure.cause == Cause::mismatch;
  return is_deed && failure.rank == rank;
}

}  // namespace

Failure Group::failure_in(const Operation& operation) const {
  std::string text = describe_call(operation.first_call_);
  if (operation.call_count_ > 1) text = std::to_string(operation.call_count_) + " coalesced calls, the first " + text;
  return {.cause = Cause::transport,
          .rank = who_.rank,
          .what = {},
          .number = operation.number(),
          .operation = std::move(text),
          .bytes = operation.bytes_,
          .peers = operation.peers_,
          .limit = operation.deadline_.full_time()};
}

Failure Group::failure_outside(Cause cause, const std::string& what) const {
  return {.cause = cause, .rank = who_.rank, .what = what};
}

// What a call, or the wait for it, ended with.
void Group::fail_by(const Failure& call, const Outcome& outcome) {
  Failure failure = call;
  switch (outcome.kind) {
    case Outcome::Kind::timed_out: failure.cause = Cause::timed_out; break;
    case Outcome::Kind::failed:
      if (outcome.result == abi::Result::unhandled_cuda_error) {
        end_if_sticky();
        failure.cause = Cause::device;
      }
      failure.what = outcome.text;
      break;
    case Outcome::Kind::aborted: failure.cause = Cause::aborted; break;  // by whom is known already
    case Outcome::Kind::done: failure.what = "NCCL made no communicator"; break;
  }
  fail(failure);
}

// NCCL does not say which CUDA error it met; one that lasts is met again.
void Group::end_if_sticky() const {
  const cudaError_t code = cudaStreamQuery(stream_.get());
  if (is_sticky(code)) check(code, "NCCL was at work");
  static_cast<void>(cudaGetLastError());  // as it was: the work on the stream not being done is no error of the program
}

void Group::fail(const Failure& failure) {
  if (!status_->fail(failure)) return;
  if (failure.cause == Cause::round_over) hurry_.cut("the round is over");
  wake_.cut("the group has failed");
  Watch::of_process().wake();
  const std::lock_guard lock(mutex_);
  became_idle_.notify_all();
}

void Group::abort(const std::string& reason, AbortCause cause) {
  if (cause == AbortCause::round_over) hurry_.cut("the round is over");
  fail(failure_outside(cause == AbortCause::round_over ? Cause::round_over : Cause::aborted, reason));
}

RankProgress Group::progress() const {
  const std::lock_guard lock(mutex_);
  RankProgress progress{.called = last_called_.number, .started = last_started_, .completed = last_completed_};
  for (const auto& operation : under_way_) {
    if (operation->is_point_to_point()) continue;
    progress.oldest = operation->number();
    progress.operation = failure_in(*operation).operation;
    return progress;
  }
  if (progress.called > 0)
    progress.operation = last_called_.name ? last_called_.name : describe_call(last_called_.call);
  if (last_called_.name != nullptr && progress.completed < progress.called) progress.oldest = progress.called;
  return progress;
}

FailedGroup Group::failed_group() const {
  return {who_,
          job_ranks_,
          static_cast<int>(::getpid()),
          "cuda:" + std::to_string(device_),
          communicator_->library().name(),
          communicator_->library().log_advice()};
}

// `number` is that of this rank's last call: what comes after it waits in vain.
void Group::say_that_it_left() {
  Failure departure = failure_outside(Cause::left, kLeftInGoodOrder);
  departure.number = progress().called;
  board_->tell(departure, progress(), kAnswerLimit, hurry_);
}

void Group::look_at_departure() {
  std::unique_lock lock(mutex_);
  if (!departure_) return;
  const bool is_in_vain = std::any_of(under_way_.begin(), under_way_.end(),
                                      [&](const auto& operation) { return operation->number() > departure_->number; });
  if (!is_in_vain) return;
  const Failure departure = *departure_;
  lock.unlock();
  fail(departure);
}

// The guard's thread: asleep until this rank or another one finds a failure, or the group is given back.
void Group::stand_guard() {
  std::optional<DeviceGuard> guard;
  try {
    guard.emplace(device_);
  } catch (const CudaError&) {  // whoever needs the device finds that too
  }
  if (board_) {
    const auto heard = board_->listen(wake_);
    if (heard && heard->cause == Cause::left && heard->what == kLeftInGoodOrder) {
      const std::lock_guard lock(mutex_);
      departure_ = *heard;
    } else if (heard) {
      fail(*heard);
    }
  }
  pollfd polled{wake_.descriptor(), POLLIN, 0};
  while (!wake_.is_cut()) ::poll(&polled, 1, -1);
  if (status_->has_failed()) handle_failure();
  is_handled_ = true;
  if (status_->has_failed()) flush_log();
}

// The other ranks are told first: an aborted collective may let a neighbour's collective complete with bytes that
// nobody sent, and no rank may take those for a result. The verdict comes after the abort, because with the verdict
// work is over and its memory is the caller's again.
void Group::handle_failure() {
  is_failure_taken_ = true;
  const Failure own = *status_->failure();
  take_stock_for_good();
  const RankProgress progress = this->progress();
  Failure first = own;
  const bool tells = board_ && own.cause != Cause::round_over;
  if (tells) {
    first = board_->tell(own, progress, kAnswerLimit, hurry_);
    board_->wait_for_answers(kAllFailLimit);
  }
  abort_communicator();
  if (is_own_doing(own, who_.rank)) {
    status_->set_verdict(core::judge(failed_group(), own, {}));
    if (own.cause == Cause::round_over && !is_idle()) static_cast<void>(log_.write_failure(own.what));
  } else {
    auto all = tells ? board_->collect(kAnswerLimit) : std::vector<std::optional<RankProgress>>{};
    if (!all.empty()) all[static_cast<std::size_t>(who_.rank)] = progress;
    Verdict verdict = core::judge(failed_group(), first, core::reports_of(first, all));
    verdict.message += log_.write_failure(verdict.message);
    status_->set_verdict(std::move(verdict));
  }
  end_all();
  call_back();
  if (own.cause != Cause::round_over && !(is_own_doing(own, who_.rank) && own.cause != Cause::mismatch))
    tell_listener();
}

// Returns once the device is done with what was under way (look() ends the process where that never comes), and NCCL
// too, unless that waits for a rank that is stopped: then NCCL is left to it.
void Group::abort_communicator() {
  std::shared_ptr<Operation> last;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& operation : under_way_) {
      if (operation->has_started_) last = operation;  // others wait for what the callers' streams hold
    }
  }
  communicator_->abort();
  try {
    if (last) EventWaits::of_process().wait(*last->end_, device_);
  } catch (const CudaError&) {  // an error that does not last, of something else
  }
  static_cast<void>(communicator_->has_ended(kNcclsPatience));
}

void Group::end_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& operation : under_way_) {
    log_.fail(operation->ticket_);
    auto& callbacks = operation->callbacks_;
    std::move(callbacks.begin(), callbacks.end(), std::back_inserter(due_with_error_));
    callbacks.clear();
  }
  under_way_.clear();
  became_idle_.notify_all();
}

void Group::set_failure_listener(process_group::Backend::FailureListener tell) {
  std::unique_lock lock(listener_mutex_);
  listener_told_.wait(lock, [this] { return !is_telling_; });
  listener_ = std::move(tell);
  if (!listener_ || !found_itself_) return;
  const auto listener = std::exchange(listener_, nullptr);
  const std::string reason = *found_itself_;
  lock.unlock();
  listener(reason);
}

void Group::tell_listener() {
  std::unique_lock lock(listener_mutex_);
  const Failure failure = *status_->failure();
  found_itself_ = failure.what.empty() ? failure.operation + " did not complete in time" : failure.what;
  if (!listener_) return;
  const auto listener = std::exchange(listener_, nullptr);
  is_telling_ = true;
  lock.unlock();
  listener(*found_itself_);
  lock.lock();
  is_telling_ = false;
  listener_told_.notify_all();
}

}  // namespace ddp::nccl_backend
