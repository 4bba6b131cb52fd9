#include "worker_runtime/backends/nccl/communicator_setup.hpp"

#include <chrono>

#include "ddp/error.hpp"
#include "worker_runtime/backends/nccl/cuda.hpp"
#include "worker_runtime/backends/nccl/in_progress.hpp"
#include "worker_runtime/backends/nccl/nccl_thread.hpp"

namespace ddp::nccl_backend {

namespace {

using abi::Result;
using Clock = std::chrono::steady_clock;

constexpr int kJobsLeaveThreads = abi::version_code(2, 27, 0);  // earlier ones keep them in their caller's thread

bool keeps_calls_in_threads(const NcclLibrary& nccl) { return nccl.version() < kJobsLeaveThreads; }

Outcome settle_comm(const NcclLibrary& nccl, abi::Comm comm, base::Deadline& deadline) {
  for (Pauses pauses;; pauses.pause(deadline.end(), deadline.cut())) {
    if (const Result state = state_of(nccl, comm); state != Result::in_progress) {
      int ignored = 0;  // it is how NCCL's earlier versions let their thread forget what it had begun
      if (keeps_calls_in_threads(nccl)) static_cast<void>(nccl->comm_count(comm, &ignored));
      return outcome_of(nccl, state);
    }
    if (deadline.passed(Clock::now())) return {.kind = Outcome::Kind::timed_out};
  }
}

void finalize_and_destroy(const NcclLibrary& nccl, abi::Comm comm) {
  base::Deadline deadline(Clock::now(), Clock::now() + kNcclsPatience);
  const Result began = nccl->comm_finalize(comm);
  const bool is_done = outcome_of(nccl, began).kind == Outcome::Kind::done &&
                       settle_comm(nccl, comm, deadline).kind == Outcome::Kind::done;
  static_cast<void>(is_done ? nccl->comm_destroy(comm) : nccl->comm_abort(comm));
}

}  // namespace

CommunicatorSetup::CommunicatorSetup(const NcclLibrary& nccl, const Communicator::Rank& rank,
                                     const CommunicatorConfig& config)
    : nccl_(nccl), device_(current_device()) {
  abi::Config wanted = config.for_setup(rank.name);
  const Result result = nccl->comm_init_rank_config(&comm_, rank.size, rank.id, rank.rank, &wanted);
  if (comm_ != nullptr && (result == Result::success || result == Result::in_progress)) return;
  if (comm_ != nullptr) static_cast<void>(nccl->comm_abort(comm_));
  throw Error("NCCL refuses to make a communicator: " + nccl.describe(result, nullptr) + "\nwhere: " + nccl.name() +
              "\ntry:   " + nccl.log_advice());
}

CommunicatorSetup::~CommunicatorSetup() {
  if (comm_ == nullptr) return;
  const auto abort_all = [&nccl = nccl_, comm = comm_, made = made_] {
    static_cast<void>(nccl->comm_abort(comm));
    if (*made != nullptr) static_cast<void>(nccl->comm_abort(*made));
  };
  if (keeps_calls_in_threads(nccl_)) {
    abort_all();
  } else {
    static_cast<void>(in_thread_of_its_own(device_, abort_all).wait_for(kNcclsPatience));
  }
}

Outcome CommunicatorSetup::settle(base::Deadline& deadline) { return settle_comm(nccl_, comm_, deadline); }

std::pair<Outcome, abi::Comm> CommunicatorSetup::split(int rank, abi::Config config, base::Deadline& deadline) {
  constexpr int kOneColor = 0;
  Outcome outcome = outcome_of(nccl_, nccl_->comm_split(comm_, kOneColor, rank, made_.get(), &config));
  if (outcome.kind == Outcome::Kind::done) outcome = settle(deadline);
  if (outcome.kind != Outcome::Kind::done) return {outcome, nullptr};
  return {outcome, std::exchange(*made_, nullptr)};
}

std::shared_future<void> CommunicatorSetup::give_back() {
  return in_thread_of_its_own(
      device_, [&nccl = nccl_, comm = std::exchange(comm_, nullptr)] { finalize_and_destroy(nccl, comm); });
}

}  // namespace ddp::nccl_backend
