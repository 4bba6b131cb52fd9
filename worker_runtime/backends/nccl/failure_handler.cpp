#include "worker_runtime/backends/nccl/failure_handler.hpp"

#include <poll.h>

#include <cstdio>
#include <utility>
#include <vector>

#include "base/quiet_thread.hpp"
#include "worker_runtime/backends/nccl/event_wait.hpp"
#include "worker_runtime/backends/nccl/watch.hpp"
#include "worker_runtime/core/failure/departure.hpp"
#include "worker_runtime/core/failure/judge.hpp"
#include "worker_runtime/process_group/deadline_after.hpp"

namespace ddp::nccl_backend {

namespace {

using core::Cause;
using core::Verdict;
using process_group::AbortCause;

constexpr const char* kLeftInGoodOrder = "in good order";
constexpr const char* kDestroyed = "it was destroyed";
constexpr std::chrono::milliseconds kAllFailLimit{100};  // for the living to know that the group has failed
constexpr std::chrono::milliseconds kAnswerLimit{500};   // for what other ranks say; one that is dead never does
constexpr std::chrono::milliseconds kTogether{100};      // in which ranks that end at about one time all leave
constexpr std::chrono::seconds kFarewellLimit{2};        // for the others to leave, and for NCCL to end after that

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

FailureHandler::FailureHandler(GroupState& group, DeviceProgress& progress, std::optional<FailureBoard::Place> board)
    : group_(group), progress_(progress) {
  if (board) board_.emplace(std::move(*board));
}

void FailureHandler::start() {
  thread_ = base::start_quiet_thread([this] { stand_guard(); });
}

void FailureHandler::stop() {
  wake_.cut("the group is given back");
  if (thread_.joinable()) thread_.join();
}

Failure FailureHandler::failure_in(const Operation& operation) const {
  return operation.failure(Cause::transport, group_.place.who.rank);
}

void FailureHandler::fail_by(Failure failure, const Outcome& outcome) {
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
void FailureHandler::end_if_sticky() const {
  const cudaError_t code = cudaStreamQuery(group_.stream.get());
  if (is_sticky(code)) check(code, "NCCL was at work");
  static_cast<void>(cudaGetLastError());  // as it was: the work on the stream not being done is no error of the program
}

void FailureHandler::fail(const Failure& failure) {
  if (!group_.status->fail(failure)) return;
  if (failure.cause == Cause::round_over) hurry_.cut("the round is over");
  wake_.cut("the group has failed");
  Watch::of_process().wake();
  group_.under_way.wake_waiting();
}

void FailureHandler::abort(const std::string& reason, AbortCause cause) {
  const bool is_round_over = cause == AbortCause::round_over;
  if (is_round_over) hurry_.cut("the round is over");
  fail(group_.failure(is_round_over ? Cause::round_over : Cause::aborted, reason));
}

// The others may have something to compute yet, or to call, in vain.
void FailureHandler::leave() {
  const DeviceGuard guard(group_.device);
  bool all_leave = !board_ || board_->leave(kTogether, hurry_);
  if (!all_leave) {
    say_that_it_left();
    all_leave = board_->leave(kFarewellLimit, hurry_);
  }
  Communicator& communicator = *group_.communicator;
  base::Deadline deadline = process_group::deadline_after(kFarewellLimit);
  if (!all_leave || !communicator.close(deadline)) {
    communicator.abort();
    static_cast<void>(communicator.has_ended(kFarewellLimit));
  }
  const Failure departure = group_.failure(Cause::left, kDestroyed);
  group_.status->fail(departure);
  group_.status->set_verdict(core::judge(group_.place, departure, {}));
}

// `number` is that of this rank's last call: what comes after it waits in vain.
void FailureHandler::say_that_it_left() {
  Failure departure = group_.failure(Cause::left, kLeftInGoodOrder);
  const RankProgress progress = group_.under_way.progress();
  departure.number = progress.called;
  board_->tell(departure, progress, kAnswerLimit, hurry_);
}

// The thread: asleep until this rank or another one finds a failure, or the group is given back.
void FailureHandler::stand_guard() {
  std::optional<DeviceGuard> guard;
  try {
    guard.emplace(group_.device);
  } catch (const CudaError&) {  // whoever needs the device finds that too
  }
  if (board_) listen();
  pollfd polled{wake_.descriptor(), POLLIN, 0};
  while (!wake_.is_cut()) ::poll(&polled, 1, -1);
  if (group_.status->has_failed()) handle();
  is_handled_ = true;
  if (group_.status->has_failed()) flush_log();
}

void FailureHandler::listen() {
  const auto heard = board_->listen(wake_);
  if (heard && heard->cause == Cause::left && heard->what == kLeftInGoodOrder) {
    group_.under_way.depart(*heard);
  } else if (heard) {
    fail(*heard);
  }
}

void FailureHandler::handle_if_new() {
  if (!is_taken_) handle();
}

// The other ranks are told first: an aborted collective may let a neighbour's collective complete with bytes that
// nobody sent, and no rank may take those for a result. The verdict comes after the abort, because with the verdict
// work is over and its memory is the caller's again.
void FailureHandler::handle() {
  is_taken_ = true;
  const Failure own = *group_.status->failure();
  progress_.last_look();
  const RankProgress progress = group_.under_way.progress();
  Failure first = own;
  const bool tells = board_ && own.cause != Cause::round_over;
  if (tells) {
    first = board_->tell(own, progress, kAnswerLimit, hurry_);
    board_->wait_for_answers(kAllFailLimit);
  }
  abort_communicator();
  const bool is_own = is_own_doing(own, group_.place.who.rank);
  if (is_own) {
    group_.status->set_verdict(core::judge(group_.place, own, {}));
    const bool is_cut_short = own.cause == Cause::round_over && !group_.under_way.is_idle();
    if (is_cut_short) static_cast<void>(group_.log.write_failure(own.what));
  } else {
    auto verdict = verdict_of(first, progress, tells);
    core::tell_failure(group_.place, verdict);
    group_.status->set_verdict(std::move(verdict));
  }
  group_.under_way.end_all();
  group_.under_way.post_callbacks();
  if (own.cause != Cause::round_over && !(is_own && own.cause != Cause::mismatch)) tell_listener();
}

Verdict FailureHandler::verdict_of(const Failure& first, const RankProgress& own, bool has_told) {
  auto all = has_told ? board_->collect(kAnswerLimit) : std::vector<std::optional<RankProgress>>{};
  if (!all.empty()) all[static_cast<std::size_t>(group_.place.who.rank)] = own;
  Verdict verdict = core::judge(group_.place, first, core::reports_of(first, all));
  verdict.message += group_.log.write_failure(verdict.message);
  return verdict;
}

// Returns once the device is done with what was under way (Group::look() ends the process where that never comes), and
// NCCL too, unless that waits for a rank that is stopped: then NCCL is left to it.
void FailureHandler::abort_communicator() {
  const std::shared_ptr<Operation> last = group_.under_way.newest_started();
  group_.communicator->abort();
  try {
    if (last) EventWaits::of_process().wait(*last->end_event(), group_.device);
  } catch (const CudaError&) {  // an error that does not last, of something else
  }
  static_cast<void>(group_.communicator->has_ended(kNcclsPatience));
}

void FailureHandler::tell_listener() {
  const Failure failure = *group_.status->failure();
  listener_.tell(failure.what.empty() ? failure.operation + " did not complete in time" : failure.what);
}

}  // namespace ddp::nccl_backend
