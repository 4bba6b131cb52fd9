#include "worker_runtime/backends/nccl/group.hpp"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <utility>

#include "rendezvous/io/quiet_thread.hpp"
#include "worker_runtime/backends/nccl/event_wait.hpp"
#include "worker_runtime/core/callbacks/callbacks.hpp"
#include "worker_runtime/core/failure/judge.hpp"
#include "worker_runtime/process_group/deadline_after.hpp"

namespace ddp::nccl_backend {

namespace {

using process_group::Collective;

constexpr std::size_t kUnderWayMax = 65'536;         // a model has hundreds of buckets
constexpr std::chrono::seconds kFarewellLimit{2};    // for what is under way when a group is given back
constexpr std::chrono::milliseconds kTogether{100};  // in which ranks that end at about one time all give it back
constexpr std::chrono::seconds kAbortLimit{30};      // the device takes less than one, unless it hangs

flight_recorder::GroupFacts facts_of(const GroupParts& parts) {
  return {.backend = "nccl",
          .name = parts.who.name,
          .description = std::to_string(parts.who.size) + (parts.who.size == 1 ? " rank" : " ranks"),
          .track = {},
          .library = version_text(parts.communicator->library().version()),
          .round = parts.who.round,
          .ranks = parts.job_ranks,
          .rank = parts.who.rank};
}

// A late look may mean that the process was stopped, but also that the driver held this thread up: so only once.
bool is_late(io::Deadline& deadline, std::chrono::steady_clock::time_point now) {
  return deadline.stopped_at() ? now >= deadline.end() : deadline.passed(now);
}

flight_recorder::Operation recorded(const Collective& call) {
  if (call.kind != process_group::CollectiveKind::allocate) return flight_recorder::operation_of(call);
  return flight_recorder::allocation_of(call.output.count, call.timeout);
}

// What looks after a collective can't look into a graph.
void require_no_capture(cudaStream_t stream) {
  if (stream == nullptr) return;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "asking for a stream's capture");
  if (status == cudaStreamCaptureStatusNone) return;
  throw InvalidArgument(
      "the stream of this collective is being captured into a graph, which libddp's collectives can't be part of"
      "\ntry:   end the capture before the collective");
}

std::size_t words_bytes(int size) { return static_cast<std::size_t>(size) * kWordsPerRank * sizeof(std::int64_t); }

}  // namespace

Group::Group(GroupParts parts)
    : who_(parts.who),
      device_(parts.device),
      job_ranks_(parts.job_ranks),
      words_on_host_(words_bytes(who_.size)),
      words_(words_bytes(who_.size)),
      log_(facts_of(parts)) {
  communicator_ = std::move(parts.communicator);
  if (parts.board) board_.emplace(std::move(*parts.board));
}

std::shared_ptr<Group> Group::make(GroupParts parts) {
  const std::shared_ptr<Group> group(new Group(std::move(parts)), [](Group* made) {
    if (!made->in_forked_child()) delete made;  // else leaked: it is the parent's
  });
  try {
    group->start();
  } catch (...) {
    group->close();
    throw;
  }
  return group;
}

void Group::start() {
  check(cudaMemsetAsync(words_.data(), 0, words_bytes(who_.size), stream_.get()), "zeroing device memory");
  auto begin = std::make_shared<Event>(Event::Timing::on);
  begin->record(stream_.get());
  EventWaits::of_process().wait(*begin, device_);
  clock_.set(begin, flight_recorder::now());
  guard_ = io::start_quiet_thread([this] { stand_guard(); });
  Watch::of_process().add(this);
}

void Group::close() {
  {
    std::unique_lock lock(mutex_);
    if (std::exchange(is_closed_, true)) return;
    if (!under_way_.empty()) Watch::of_process().wake();
    const auto is_over = [this] { return under_way_.empty() || status_->has_failed(); };
    // Each call ends at its deadline at the latest. A program that unwinds from an error is not held up for as long.
    if (std::uncaught_exceptions() == 0) {
      became_idle_.wait(lock, is_over);
    } else {
      became_idle_.wait_for(lock, kFarewellLimit, is_over);
    }
  }
  if (!status_->has_failed() && !is_idle()) fail(failure_outside(Cause::left, "it was destroyed"));
  wake_.cut("the group is given back");
  if (guard_.joinable()) guard_.join();
  Watch::of_process().remove(this);
  if (!status_->has_failed()) {
    leave();
  } else if (!is_failure_taken_) {  // the last look found it, when the guard had gone
    handle_failure();
  }
  std::unique_lock lock(mutex_);
  under_way_.clear();
  if (core::is_callback_thread()) return;
  became_idle_.wait(lock, [this] { return callbacks_due_ == 0; });
}

// In good order: nothing is under way. The others may have something to compute yet, or to call, in vain.
void Group::leave() {
  const DeviceGuard guard(device_);
  bool all_leave = !board_ || board_->leave(kTogether, hurry_);
  if (!all_leave) {
    say_that_it_left();
    all_leave = board_->leave(kFarewellLimit, hurry_);
  }
  io::Deadline deadline = process_group::deadline_after(kFarewellLimit);
  if (!all_leave || !communicator_->close(deadline)) {
    communicator_->abort();
    static_cast<void>(communicator_->has_ended(kFarewellLimit));
  }
  const Failure departure = failure_outside(Cause::left, "it was destroyed");
  status_->fail(departure);
  status_->set_verdict(core::judge(failed_group(), departure, {}));
}

std::shared_ptr<Operation> Group::begin(std::span<const Collective> calls) {
  status_->throw_if_failed();
  for (const Collective& call : calls) require_support(communicator_->library(), call);
  const DeviceGuard guard(device_);
  const Called last_before = last_called_;
  const std::shared_ptr<Operation> operation = enter(calls);
  Watch::of_process().wake();  // it looks after this one also while NCCL connects
  Outcome outcome;
  try {
    order_behind_callers(*operation);
    operation->begin_->record(stream_.get());
  } catch (...) {  // nothing was begun
    take_back(*operation, last_before);
    throw;
  }
  try {
    outcome = enqueue(calls, *operation);
  } catch (const CudaError& error) {  // some of the calls may have been
    outcome = {Outcome::Kind::failed, abi::Result::unhandled_cuda_error, error.what()};
  }
  if (outcome.kind != Outcome::Kind::done) {
    fail_by(failure_in(*operation), outcome);
    communicator_->abort_where_only_this_thread_can();  // else the guard does it, once the others have been told
    if (outcome.result == abi::Result::invalid_argument) throw_refused(failure_in(*operation).operation, outcome.text);
    status_->throw_failure();
  }
  try {
    operation->end_->record(stream_.get());
  } catch (const CudaError& error) {
    fail_by(failure_in(*operation), {Outcome::Kind::failed, abi::Result::unhandled_cuda_error, error.what()});
    status_->throw_failure();
  }
  operation->is_enqueued_.store(true, std::memory_order_release);
  Watch::of_process().wake();
  return operation;
}

// In the place of the group's failure, which it has brought about.
void Group::throw_refused(const std::string& operation, const std::string& why) {
  try {
    status_->throw_failure();
  } catch (const Error&) {
    throw InvalidArgument(operation + " is refused by NCCL: " + why);
  }
}

// Records the calls, and makes them known to who asks how far this rank came.
std::shared_ptr<Operation> Group::enter(std::span<const Collective> calls) {
  Operation::Events events;
  const std::lock_guard lock(mutex_);
  if (under_way_.size() >= kUnderWayMax) {
    throw Error(
        std::to_string(kUnderWayMax) +
        " collectives of this process group are under way, more than any use needs\ntry:   let the device catch up");
  }
  flight_recorder::Ticket ticket;
  if (calls.size() == 1) {
    ticket = log_.record(recorded(calls.front()));
  } else {
    std::vector<flight_recorder::Operation> operations;
    for (const Collective& call : calls) operations.push_back(recorded(call));
    ticket = log_.record(operations);
  }
  const auto deadline = process_group::deadline_after(calls.front().timeout);
  under_way_.push_back(std::make_shared<Operation>(shared_from_this(), calls, ticket, deadline, std::move(events)));
  last_called_ = {.number = ticket.collective_sequence, .call = calls.front()};
  return under_way_.back();
}

void Group::take_back(const Operation& operation, const Called& last_before) {
  const std::lock_guard lock(mutex_);
  log_.refuse(operation.ticket_);
  std::erase_if(under_way_, [&](const auto& other) { return other.get() == &operation; });
  last_called_ = last_before;
  if (under_way_.empty()) became_idle_.notify_all();
}

void Group::order_behind_callers(const Operation& operation) {
  for (auto* const stream : operation.streams_) {
    if (stream == stream_.get()) continue;
    require_no_capture(stream);
    before_.record(stream);
    before_.hold_up(stream_.get());
  }
}

Outcome Group::enqueue(std::span<const Collective> calls, Operation& operation) {
  const LaunchPlace place{who_.rank, who_.size, static_cast<std::int64_t*>(words_.data()), stream_.get()};
  const NcclLibrary& nccl = communicator_->library();
  const Outcome outcome = communicator_->enqueue([&](abi::Comm comm) {
    abi::Result result = abi::Result::success;
    for (const Collective& call : calls) {
      result = launch(nccl, call, place, comm);
      if (result != abi::Result::success && result != abi::Result::in_progress) break;
    }
    return result;
  });
  return outcome.kind == Outcome::Kind::done ? communicator_->settle(operation.deadline_) : outcome;
}

void Group::wait(Operation& operation) {
  require_own_process();
  if (operation.is_done_) return;
  status_->throw_if_failed();
  if (operation.blocks_host_) return wait_on_host(operation);
  const DeviceGuard guard(device_);
  for (auto* const stream : operation.streams_) operation.end_->hold_up(stream);
}

void Group::wait_on_host(Operation& operation) {
  if (operation.is_done_) return;
  EventWaits::of_process().wait(*operation.end_, device_);
  if (!operation.is_done_) status_->throw_if_failed();  // an abort ends it, too
}

bool Group::wait_until(Operation& operation, std::chrono::steady_clock::time_point end) {
  require_own_process();
  if (operation.is_done_) return true;
  status_->throw_if_failed();
  const bool has_come = EventWaits::of_process().wait_until(*operation.end_, device_, end);
  if (!operation.is_done_) status_->throw_if_failed();
  return has_come || operation.is_done_;
}

void Group::on_completed(Operation& operation, Work::State::Callback callback) {
  require_own_process();
  std::unique_lock lock(mutex_);
  const auto is_it = [&](const auto& other) { return other.get() == &operation; };
  if (std::any_of(under_way_.begin(), under_way_.end(), is_it)) {
    operation.callbacks_.push_back(std::move(callback));
    return;
  }
  lock.unlock();
  Work::State::call(callback, operation.is_done_ ? nullptr : status_->error());
}

// Without a lock.
void Group::call_back() {
  std::unique_lock lock(mutex_);
  if (due_.empty() && due_with_error_.empty()) return;
  ++callbacks_due_;
  auto due = std::exchange(due_, {});
  auto due_with_error = std::exchange(due_with_error_, {});
  lock.unlock();
  core::post_callback(
      [self = shared_from_this(), due = std::move(due), due_with_error = std::move(due_with_error)]() mutable {
        for (const auto& callback : due) Work::State::call(callback, nullptr);
        for (const auto& callback : due_with_error) Work::State::call(callback, self->status_->error());
        due.clear();  // what they hold may be the last handle of the group
        due_with_error.clear();
        const std::lock_guard lock(self->mutex_);
        --self->callbacks_due_;
        self->became_idle_.notify_all();
      });
}

bool Group::is_over(const Operation& operation) const {
  if (in_forked_child() || operation.is_done_) return true;
  if (status_->has_failed()) return status_->has_verdict();
  const DeviceGuard guard(device_);
  const RelaxedCapture relaxed;
  return operation.is_enqueued_ && operation.end_->has_come();
}

// In the watching thread.
Look Group::look(std::chrono::steady_clock::time_point now) {
  if (status_->has_failed()) {
    if (is_handled_) return Look::idle;
    if (now - status_->failed_at() > kAbortLimit) {
      end_process("what a group had under way on cuda:" + std::to_string(device_) +
                  " did not end within 30 s of its abort\ntry:   `dmesg | grep -i xid` tells whether the GPU failed");
    }
    return Look::unchanged;
  }
  if (is_idle()) return Look::idle;
  try {
    const DeviceGuard guard(device_);
    const bool has_progressed = take_stock();
    call_back();
    look_at_departure();
    look_at_deadlines(now);
    look_at_communicator();
    return has_progressed ? Look::progressed : Look::unchanged;
  } catch (const CudaError& error) {
    fail(failure_outside(Cause::device, error.what()));
  } catch (const std::exception& error) {
    fail(failure_outside(Cause::transport, error.what()));
  }
  return Look::unchanged;
}

// Sees what has started and what has ended, in order. True where there was any.
bool Group::take_stock() {
  const std::lock_guard stock(stock_mutex_);
  return !is_stock_final_ && take_stock_locked();
}

// Before the communicator is aborted: what ends after that is not done.
void Group::take_stock_for_good() {
  const std::lock_guard stock(stock_mutex_);
  is_stock_final_ = true;
  try {
    take_stock_locked();
  } catch (const std::exception&) {  // what is known by now is all there is to tell
  }
}

bool Group::take_stock_locked() {
  bool has_progressed = false;
  while (const std::shared_ptr<Operation> front = oldest()) {
    const bool had_started = front->has_started_;
    const bool is_over = has_ended(*front);
    has_progressed = has_progressed || is_over || had_started != front->has_started_;
    if (!is_over) break;
    const std::lock_guard lock(mutex_);
    if (under_way_.empty() || under_way_.front() != front) break;  // a failure has ended it meanwhile
    last_completed_ = std::max(last_completed_, front->number());
    front->is_done_ = true;
    std::move(front->callbacks_.begin(), front->callbacks_.end(), std::back_inserter(due_));
    front->callbacks_.clear();
    under_way_.pop_front();
    if (under_way_.empty()) became_idle_.notify_all();
  }
  return has_progressed;
}

bool Group::has_ended(Operation& operation) {
  if (!operation.is_enqueued_.load(std::memory_order_acquire)) return false;
  if (!operation.has_started_) {
    if (!operation.begin_->has_come()) return false;
    operation.has_started_ = true;
    log_.start(operation.ticket_, clock_.time_of(operation.begin_));
    const std::lock_guard lock(mutex_);
    last_started_ = std::max(last_started_, operation.number());
  }
  if (!operation.end_->has_come()) return false;
  log_.complete(operation.ticket_, clock_.time_of(operation.end_));
  return true;
}

// The oldest is what the others wait for, whichever's time is up.
void Group::look_at_deadlines(std::chrono::steady_clock::time_point now) {
  std::shared_ptr<Operation> late;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& operation : under_way_) {
      if (!operation->is_enqueued_ || !is_late(operation->deadline_, now)) continue;
      late = operation;
      break;
    }
  }
  if (!late) return;
  const std::shared_ptr<Operation> held_up_by = oldest();
  Failure failure = failure_in(held_up_by ? *held_up_by : *late);
  failure.limit = late->deadline_.full_time();
  fail_by(failure, {.kind = Outcome::Kind::timed_out});
}

void Group::look_at_communicator() {
  const Outcome outcome = communicator_->state();
  if (outcome.kind != Outcome::Kind::failed) return;
  const std::shared_ptr<Operation> front = oldest();
  fail_by(front ? failure_in(*front) : failure_outside(Cause::transport, ""), outcome);
}

std::shared_ptr<Operation> Group::oldest() const {
  const std::lock_guard lock(mutex_);
  return under_way_.empty() ? nullptr : under_way_.front();
}

bool Group::is_idle() const {
  const std::lock_guard lock(mutex_);
  return under_way_.empty();
}

// They end by themselves: by their deadlines at the latest.
void Group::wait_until_idle() {
  std::unique_lock lock(mutex_);
  became_idle_.wait(lock, [this] { return under_way_.empty() || status_->has_failed(); });
  lock.unlock();
  status_->throw_if_failed();
}

std::shared_ptr<Group> Group::split(const process_group::Membership& of_new, const std::vector<int>& ranks,
                                    std::chrono::milliseconds timeout) {
  status_->throw_if_failed();
  const DeviceGuard guard(device_);
  wait_until_idle();
  const auto ticket = log_.record(flight_recorder::Operation{.name = "split", .timeout = timeout});
  {
    const std::lock_guard lock(mutex_);
    last_called_ = {.number = ticket.collective_sequence, .call = {}, .name = "split"};
  }
  log_.start(ticket);
  const bool is_member = !ranks.empty();
  io::Deadline deadline = process_group::deadline_after(timeout);
  auto [outcome, made] = communicator_->split(is_member ? ranks[0] : abi::kSplitNoColor, of_new.rank, deadline);
  if (outcome.kind != Outcome::Kind::done || (is_member && !made)) {
    log_.fail(ticket);
    Failure failure = failure_outside(Cause::transport, outcome.text);
    failure.operation = "split";
    failure.number = ticket.collective_sequence;
    failure.limit = timeout;
    fail_by(failure, outcome);
    status_->throw_failure();
  }
  log_.complete(ticket);
  if (!is_member) return nullptr;
  GroupParts parts{.who = of_new, .device = device_, .communicator = std::move(made), .board = {}, .job_ranks = {}};
  for (const int rank : ranks) parts.job_ranks.push_back(job_ranks_[static_cast<std::size_t>(rank)]);
  if (board_) {
    parts.board = FailureBoard::Place{board_->place().store, board_->place().key_prefix + of_new.name + "/",
                                      of_new.rank, of_new.size};
  }
  return make(std::move(parts));
}

}  // namespace ddp::nccl_backend
