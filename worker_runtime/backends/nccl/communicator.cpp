#include "worker_runtime/backends/nccl/communicator.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/cut.hpp"
#include "base/quiet_thread.hpp"
#include "ddp/error.hpp"
#include "worker_runtime/backends/nccl/cuda.hpp"

namespace ddp::nccl_backend {

namespace {

using abi::Result;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kYieldTime{1'000};  // a launch on a connected communicator takes less
constexpr std::chrono::microseconds kSleepMin{1'000};
constexpr std::chrono::microseconds kSleepMax{4'000};

// NCCL has nothing to wait on: yields while it may be a matter of microseconds, then sleeps longer and longer.
class Pauses {
 public:
  void pause(const base::Deadline& deadline) {
    const auto now = Clock::now();
    if (now - began_ < kYieldTime) {
      ::sched_yield();
      return;
    }
    base::sleep_until(std::min<Clock::time_point>(now + sleep_, std::max(now, deadline.end())), deadline.cut());
    sleep_ = std::min(2 * sleep_, kSleepMax);
  }

 private:
  Clock::time_point began_ = Clock::now();
  std::chrono::microseconds sleep_ = kSleepMin;
};

constexpr int kJobsLeaveThreads = abi::version_code(2, 27, 0);  // earlier ones keep them in their caller's thread

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "asking for the current device");
  return device;
}

}  // namespace

Communicator::Communicator(const NcclLibrary& nccl, abi::Comm comm, const CommunicatorConfig& config)
    : nccl_(nccl),
      config_(config),
      device_(current_device()),
      end_(std::make_shared<std::promise<void>>()),
      has_ended_(end_->get_future().share()),
      comm_(comm),
      settling_(std::this_thread::get_id()) {}

std::unique_ptr<Communicator> Communicator::begin(const NcclLibrary& nccl, const Rank& rank,
                                                  const CommunicatorConfig& config) {
  abi::Comm comm = nullptr;
  abi::Config wanted = config.for_group(rank.name);
  const Result result = nccl->comm_init_rank_config(&comm, rank.size, rank.id, rank.rank, &wanted);
  if (comm == nullptr || (result != Result::success && result != Result::in_progress)) {
    if (comm != nullptr) static_cast<void>(nccl->comm_abort(comm));
    throw Error("NCCL refuses to make a communicator: " + nccl.describe(result, nullptr) + "\nwhere: " + nccl.name() +
                "\ntry:   " + nccl.log_advice());
  }
  return std::unique_ptr<Communicator>(new Communicator(nccl, comm, config));
}

Communicator::~Communicator() {
  if (!is_aborted()) {
    abort();
    static_cast<void>(has_ended(kNcclsPatience));
  }
  if (last_call_.joinable()) last_call_.detach();
}

bool Communicator::keeps_calls_in_threads() const { return nccl_.version() < kJobsLeaveThreads; }

// With mutex_ held, once.
void Communicator::end(abi::CommAbort* last_call) {
  const auto call = [last_call, comm = std::exchange(comm_, nullptr), device = device_, end = end_] {
    try {
      const DeviceGuard guard(device);
      static_cast<void>(last_call(comm));
    } catch (const Error&) {  // without the device NCCL has nothing to free
    }
    end->set_value();
  };
  if (keeps_calls_in_threads() && settling_) return call();
  try {
    last_call_ = base::start_quiet_thread(call);
  } catch (const std::system_error&) {  // no thread is to be had
    call();
  }
}

bool Communicator::has_ended(std::chrono::milliseconds limit) {
  if (has_ended_.wait_for(limit) != std::future_status::ready) return false;
  const std::lock_guard lock(mutex_);
  if (last_call_.joinable()) last_call_.join();  // it has nothing left to do
  return true;
}

Outcome Communicator::outcome_of(Result result) const {
  if (result == Result::success || result == Result::in_progress) return {};
  return {Outcome::Kind::failed, result, nccl_.describe(result, comm_)};
}

// Empty while something is in progress.
std::optional<Outcome> Communicator::settled() {
  if (comm_ == nullptr) return Outcome{.kind = Outcome::Kind::aborted};
  Result state = Result::success;
  const Result asked = nccl_->comm_get_async_error(comm_, &state);
  if (asked != Result::success) return outcome_of(asked);
  if (state == Result::in_progress) return std::nullopt;
  return outcome_of(state);
}

Outcome Communicator::settle(base::Deadline& deadline) {
  for (Pauses pauses;; pauses.pause(deadline)) {
    {
      const std::lock_guard lock(mutex_);
      if (is_abort_wanted_ && comm_ != nullptr) end(nccl_->comm_abort);
      if (auto outcome = settled()) {
        int ignored = 0;  // it is how NCCL's earlier versions let their thread forget what it had begun
        if (comm_ != nullptr && keeps_calls_in_threads()) static_cast<void>(nccl_->comm_count(comm_, &ignored));
        settling_.reset();
        return *outcome;
      }
    }
    if (deadline.passed(Clock::now())) return {.kind = Outcome::Kind::timed_out};
  }
}

Outcome Communicator::enqueue(const std::function<Result(abi::Comm)>& calls) {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return {.kind = Outcome::Kind::aborted};
  if (const Result began = nccl_->group_start(); began != Result::success) return outcome_of(began);
  settling_ = std::this_thread::get_id();
  Result called = Result::success;
  try {
    called = calls(comm_);
  } catch (...) {
    static_cast<void>(nccl_->group_end());  // in any case: the group is the thread's
    throw;
  }
  const Result ended = nccl_->group_end();
  const bool is_called = called == Result::success || called == Result::in_progress;
  return outcome_of(is_called ? ended : called);
}

Outcome Communicator::state() {
  const std::unique_lock lock(mutex_,
                              std::try_to_lock);  // a call may block inside NCCL, and the deadlines are to be looked at
  if (!lock) return {};
  if (auto outcome = settled()) return *outcome;
  return {};
}

Communicator::Split Communicator::split(int color, int key, const std::string& name, base::Deadline& deadline) {
  // NCCL writes there once the parent is settled, or its abort has come to its end: so it outlives this call where that
  // is late.
  auto made = std::make_unique<abi::Comm>(nullptr);
  {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return {{.kind = Outcome::Kind::aborted}, nullptr};
    abi::Config wanted = config_.for_group(name);
    const Result result = nccl_->comm_split(comm_, color, key, made.get(), &wanted);
    if (result != Result::success && result != Result::in_progress) return {outcome_of(result), nullptr};
    settling_ = std::this_thread::get_id();
  }
  Split split{settle(deadline), nullptr};
  if (split.outcome.kind != Outcome::Kind::done) {
    abort();
    if (!has_ended(kNcclsPatience)) {
      static_cast<void>(made.release());
    } else if (*made != nullptr) {
      Communicator(nccl_, *made, config_).abort();
    }
    return split;
  }
  if (*made == nullptr) return split;
  split.made.reset(new Communicator(nccl_, *made, config_));
  split.outcome = split.made->settle(deadline);
  if (split.outcome.kind != Outcome::Kind::done) split.made.reset();
  return split;
}

void* Communicator::register_memory(void* memory, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return nullptr;
  void* handle = nullptr;
  return nccl_->comm_register(comm_, memory, bytes, &handle) == Result::success ? handle : nullptr;
}

void Communicator::deregister(void* handle) {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr || handle == nullptr) return;  // went with the communicator
  static_cast<void>(nccl_->comm_deregister(comm_, handle));
}

void Communicator::abort() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return;
  if (keeps_calls_in_threads() && settling_ && *settling_ != std::this_thread::get_id()) {
    is_abort_wanted_ = true;
  } else {
    end(nccl_->comm_abort);
  }
}

void Communicator::abort_where_only_this_thread_can() {
  const std::lock_guard lock(mutex_);
  if (comm_ != nullptr && keeps_calls_in_threads() && settling_ == std::this_thread::get_id()) end(nccl_->comm_abort);
}

bool Communicator::is_aborted() const {
  const std::lock_guard lock(mutex_);
  return comm_ == nullptr;
}

bool Communicator::close(base::Deadline& deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return true;
    const Result result = nccl_->comm_finalize(comm_);
    settling_ = std::this_thread::get_id();
    if (result != Result::success && result != Result::in_progress) {
      end(nccl_->comm_abort);
      return false;
    }
  }
  if (settle(deadline).kind != Outcome::Kind::done) {
    abort();
    return false;
  }
  {
    const std::lock_guard lock(mutex_);
    if (comm_ != nullptr) end(nccl_->comm_destroy);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.end() - Clock::now());
  return has_ended(std::max(left, std::chrono::milliseconds(0)));
}

}  // namespace ddp::nccl_backend
