#include "worker_runtime/backends/nccl/under_way.hpp"

#include <string>
#include <utility>
#include <vector>

#include "ddp/error.hpp"
#include "worker_runtime/backends/nccl/group_state.hpp"
#include "worker_runtime/process_group/deadline_after.hpp"

namespace ddp::nccl_backend {

namespace {

using process_group::Collective;

constexpr std::size_t kUnderWayMax = 65'536;  // a model has hundreds of buckets

flight_recorder::Operation recorded(const Collective& call) {
  if (call.kind != process_group::CollectiveKind::allocate) return flight_recorder::operation_of(call);
  return flight_recorder::allocation_of(call.output.count, call.timeout);
}

flight_recorder::Ticket record(flight_recorder::GroupLog& log, std::span<const Collective> calls) {
  if (calls.size() == 1) return log.record(recorded(calls.front()));
  std::vector<flight_recorder::Operation> operations;
  for (const Collective& call : calls) operations.push_back(recorded(call));
  return log.record(operations);
}

}  // namespace

UnderWay::UnderWay(int rank, flight_recorder::GroupLog& log, std::shared_ptr<core::GroupStatus> status)
    : log_(log), status_(std::move(status)), callbacks_(std::make_shared<DueCallbacks>(status_)), line_(rank) {}

std::shared_ptr<Operation> UnderWay::enter(const std::shared_ptr<GroupState>& group, std::span<const Collective> calls,
                                           std::vector<cudaStream_t> streams) {
  Operation::Events events{group->events->take(), group->events->take()};  // CUDA may take long to make some
  const std::lock_guard lock(mutex_);
  if (line_.size() >= kUnderWayMax) {
    throw Error(
        std::to_string(kUnderWayMax) +
        " collectives of this process group are under way, more than any use needs\ntry:   let the device catch up");
  }
  const auto ticket = record(log_, calls);
  const auto deadline = process_group::deadline_after(calls.front().timeout);
  auto operation = std::make_shared<Operation>(group, calls, std::move(streams), ticket, deadline, std::move(events));
  line_.submit(operation);
  return operation;
}

void UnderWay::take_back(Operation& operation) {
  const std::lock_guard lock(mutex_);
  log_.refuse(operation.ticket());
  line_.take_back(operation);
  if (line_.is_empty()) became_idle_.notify_all();
}

void UnderWay::launch(Operation& operation) {
  const std::lock_guard lock(mutex_);
  line_.launch(operation);
}

bool UnderWay::is_launched(const Operation& operation) const {
  const std::lock_guard lock(mutex_);
  return operation.is_launched;
}

void UnderWay::note(const char* name, std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  line_.note(name, number);
}

bool UnderWay::add_callback(Operation& operation, Work::State::Callback& callback) {
  const std::lock_guard lock(mutex_);
  if (operation.life.has_ended()) return false;
  operation.callbacks().push_back(std::move(callback));
  return true;
}

UnderWay::Front UnderWay::front() const {
  const std::lock_guard lock(mutex_);
  auto oldest = line_.oldest();
  if (!oldest || !oldest->is_launched) return {};
  const bool has_started = oldest->life.has_started();
  return {std::move(oldest), has_started};
}

void UnderWay::start(Operation& operation, flight_recorder::TimePoint at) {
  const std::lock_guard lock(mutex_);
  if (line_.start(operation)) log_.start(operation.ticket(), at);
}

bool UnderWay::complete(Operation& operation, flight_recorder::TimePoint at) {
  const std::lock_guard lock(mutex_);
  if (!line_.complete(operation)) return false;
  log_.complete(operation.ticket(), at);
  operation.set_done();
  callbacks_->add_of_done(operation.callbacks());
  if (line_.is_empty()) became_idle_.notify_all();
  return true;
}

void UnderWay::end_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& operation : line_.fail_all()) {
    log_.fail(operation->ticket());
    callbacks_->add_of_failed(operation->callbacks());
  }
  became_idle_.notify_all();
}

bool UnderWay::is_idle() const {
  const std::lock_guard lock(mutex_);
  return line_.is_empty();
}

void UnderWay::wait_until_idle(std::optional<std::chrono::milliseconds> limit) {
  std::unique_lock lock(mutex_);
  const auto is_over = [this] { return line_.is_empty() || status_->has_failed(); };
  if (limit) {
    became_idle_.wait_for(lock, *limit, is_over);
  } else {
    became_idle_.wait(lock, is_over);
  }
}

void UnderWay::wake_waiting() {
  const std::lock_guard lock(mutex_);
  became_idle_.notify_all();
}

std::shared_ptr<Operation> UnderWay::oldest() const {
  const std::lock_guard lock(mutex_);
  return line_.oldest();
}

std::shared_ptr<Operation> UnderWay::newest_started() const {
  const std::lock_guard lock(mutex_);
  return line_.newest_started();
}

std::optional<core::Failure> UnderWay::late(TimePoint now) {
  const std::lock_guard lock(mutex_);
  return line_.late(now);
}

void UnderWay::depart(core::Failure departure) {
  const std::lock_guard lock(mutex_);
  line_.depart(std::move(departure));
}

std::optional<core::Failure> UnderWay::departure_in_vain() const {
  const std::lock_guard lock(mutex_);
  return line_.departure_in_vain();
}

core::RankProgress UnderWay::progress() const {
  const std::lock_guard lock(mutex_);
  return line_.progress();
}

}  // namespace ddp::nccl_backend
