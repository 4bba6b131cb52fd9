#include "worker_runtime/backends/nccl/communicator.hpp"

#include <algorithm>
#include <mutex>
#include <tuple>
#include <utility>

#include "worker_runtime/backends/nccl/communicator_setup.hpp"
#include "worker_runtime/backends/nccl/cuda.hpp"
#include "worker_runtime/backends/nccl/in_progress.hpp"
#include "worker_runtime/backends/nccl/nccl_thread.hpp"

namespace ddp::nccl_backend {

namespace {

using abi::Result;
using Clock = std::chrono::steady_clock;

// Ends a call that has returned `result`. With NCCL_COMM_BLOCKING=0 in the environment communicators do not block,
// whatever their configuration says: then it waits until nothing is in progress.
Outcome leave(const NcclLibrary& nccl, CallGate& gate, abi::Comm comm, Result result) {
  for (Pauses pauses; result == Result::in_progress && !gate.is_taken(); result = state_of(nccl, comm)) pauses.pause();
  const Outcome outcome = outcome_of(nccl, result);
  return gate.leave() ? outcome : Outcome{.kind = Outcome::Kind::aborted};
}

// A call that may return after its caller has given up on it.
struct LongCall {
  std::mutex mutex;
  bool is_given_up = false;  // guarded by mutex, as is the next
  std::optional<Outcome> outcome;
};

}  // namespace

Outcome outcome_of(const NcclLibrary& nccl, Result result) {
  if (result == Result::success || result == Result::in_progress) return {};
  return {Outcome::Kind::failed, result, nccl.describe(result, nullptr)};
}

Communicator::Communicator(const NcclLibrary& nccl, abi::Comm comm, const CommunicatorConfig& config)
    : nccl_(nccl), config_(config), device_(current_device()), gate_(std::make_shared<CallGate>(comm)) {}

Communicator::Made Communicator::make(const NcclLibrary& nccl, const Rank& rank, const CommunicatorConfig& config,
                                      base::Deadline& deadline) {
  CommunicatorSetup setup(nccl, rank, config);
  Outcome outcome = setup.settle(deadline);
  if (outcome.kind != Outcome::Kind::done) return {outcome, nullptr};
  abi::Comm comm = nullptr;
  std::tie(outcome, comm) = setup.split(rank.rank, config.for_group(rank.name), deadline);
  if (outcome.kind != Outcome::Kind::done) return {outcome, nullptr};
  std::unique_ptr<Communicator> made(new Communicator(nccl, comm, config));
  made->has_setup_ended_ = setup.give_back();
  return {outcome, std::move(made)};
}

Communicator::~Communicator() {
  if (is_aborted()) return;
  abort();
  static_cast<void>(has_ended(kNcclsPatience));
}

void Communicator::end(abi::Comm comm, abi::CommAbort* last_call) {
  ending_.set_value(in_thread_of_its_own(device_, [last_call, comm] { static_cast<void>(last_call(comm)); }));
}

bool Communicator::has_ended(std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  return last_call_.wait_until(end) == std::future_status::ready &&
         last_call_.get().wait_until(end) == std::future_status::ready &&
         (!has_setup_ended_.valid() || has_setup_ended_.wait_until(end) == std::future_status::ready);
}

Outcome Communicator::enqueue(const std::function<Result(abi::Comm)>& calls) {
  abi::Comm const comm = gate_->enter();
  if (comm == nullptr) return {.kind = Outcome::Kind::aborted};
  Result called = nccl_->group_start();
  if (called != Result::success) return leave(nccl_, *gate_, comm, called);
  try {
    called = calls(comm);
  } catch (...) {
    static_cast<void>(nccl_->group_end());  // in any case: the group is the thread's
    static_cast<void>(gate_->leave());
    throw;
  }
  const Result ended = nccl_->group_end();
  const bool is_called = called == Result::success || called == Result::in_progress;
  return leave(nccl_, *gate_, comm, is_called ? ended : called);
}

Outcome Communicator::state() {
  abi::Comm const comm = gate_->enter_if_free();
  if (comm == nullptr) return gate_->is_taken() ? Outcome{.kind = Outcome::Kind::aborted} : Outcome{};
  const Outcome outcome = outcome_of(nccl_, state_of(nccl_, comm));
  return gate_->leave() ? outcome : Outcome{.kind = Outcome::Kind::aborted};
}

// Makes a call that may wait for the other ranks. Returns its outcome, or nothing if it has not returned by the
// deadline; then another thread calls `if_late` when it returns.
std::optional<Outcome> Communicator::call_until(base::Deadline& deadline, std::function<Result(abi::Comm)> call,
                                                std::function<void()> if_late) {
  const auto shared = std::make_shared<LongCall>();
  const std::shared_future<void> has_come_back =
      in_thread_of_its_own(device_, [shared, &nccl = nccl_, gate = gate_, call = std::move(call), if_late] {
        abi::Comm const comm = gate->enter();
        Outcome outcome{.kind = Outcome::Kind::aborted};
        if (comm != nullptr) outcome = leave(nccl, *gate, comm, call(comm));
        const std::lock_guard lock(shared->mutex);
        shared->outcome = outcome;
        if (shared->is_given_up && if_late) if_late();
      });
  do {
    has_come_back.wait_until(deadline.end());
  } while (has_come_back.wait_for(std::chrono::seconds(0)) != std::future_status::ready &&
           !deadline.passed(Clock::now()));
  const std::lock_guard lock(shared->mutex);
  shared->is_given_up = true;
  return shared->outcome;
}

Communicator::Made Communicator::split(int color, int key, const std::string& name, base::Deadline& deadline) {
  struct Child {
    abi::Comm comm = nullptr;
    abi::Config config;
  };
  const auto child = std::make_shared<Child>();
  child->config = config_.for_group(name);
  const auto split_off = [child, color, key, &nccl = nccl_](abi::Comm comm) {
    return nccl->comm_split(comm, color, key, &child->comm, &child->config);
  };
  const auto abort_child = [child, &nccl = nccl_] {
    if (child->comm != nullptr) static_cast<void>(nccl->comm_abort(child->comm));
  };
  const std::optional<Outcome> outcome = call_until(deadline, split_off, abort_child);
  if (!outcome) return {{.kind = Outcome::Kind::timed_out}, nullptr};
  if (child->comm == nullptr) return {*outcome, nullptr};
  std::unique_ptr<Communicator> made(new Communicator(nccl_, child->comm, config_));
  if (outcome->kind != Outcome::Kind::done) made.reset();
  return {*outcome, std::move(made)};
}

void* Communicator::register_memory(void* memory, std::size_t bytes) {
  abi::Comm const comm = gate_->enter();
  if (comm == nullptr) return nullptr;
  void* handle = nullptr;
  const Result result = nccl_->comm_register(comm, memory, bytes, &handle);
  return gate_->leave() && result == Result::success ? handle : nullptr;
}

void Communicator::deregister(void* handle) {
  abi::Comm const comm = handle == nullptr ? nullptr : gate_->enter();
  if (comm == nullptr) return;  // went with the communicator
  static_cast<void>(nccl_->comm_deregister(comm, handle));
  static_cast<void>(gate_->leave());
}

void Communicator::abort() {
  if (abi::Comm const comm = gate_->take()) end(comm, nccl_->comm_abort);
}

bool Communicator::close(base::Deadline& deadline) {
  const auto outcome = call_until(deadline, nccl_->comm_finalize, {});
  if (outcome && outcome->kind == Outcome::Kind::aborted) return true;
  if (!outcome || outcome->kind != Outcome::Kind::done) {
    abort();
    return false;
  }
  if (abi::Comm const comm = gate_->take()) end(comm, nccl_->comm_destroy);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.end() - Clock::now());
  return has_ended(std::max(left, std::chrono::milliseconds(0)));
}

}  // namespace ddp::nccl_backend
