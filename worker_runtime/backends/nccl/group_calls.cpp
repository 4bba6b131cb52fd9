#include "worker_runtime/backends/nccl/group_calls.hpp"

#include "worker_runtime/backends/nccl/launch.hpp"
#include "worker_runtime/backends/nccl/watch.hpp"

namespace ddp::nccl_backend {

namespace {

using core::Cause;
using process_group::Collective;

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

std::size_t bytes_of_words(int size) { return static_cast<std::size_t>(size) * kWordsPerRank * sizeof(std::int64_t); }

Outcome outcome_of(const CudaError& error) {
  return {Outcome::Kind::failed, abi::Result::unhandled_cuda_error, error.what()};
}

}  // namespace

GroupCalls::GroupCalls(std::shared_ptr<GroupState> group, FailureHandler& failure)
    : group_(std::move(group)), failure_(failure), words_(bytes_of_words(group_->place.who.size)) {}

std::size_t GroupCalls::words_bytes() const { return bytes_of_words(group_->place.who.size); }

std::shared_ptr<Operation> GroupCalls::begin(std::span<const Collective> calls) {
  group_->status->throw_if_failed();
  for (const Collective& call : calls) require_support(group_->communicator->library(), call);
  const DeviceGuard guard(group_->device);
  const std::shared_ptr<Operation> operation = group_->under_way.enter(group_, calls);
  Watch::of_process().wake();  // it looks after this one also while NCCL connects the ranks, and waits for them
  Outcome outcome;
  try {
    order_behind_callers(*operation);
    operation->begin_event()->record(group_->stream.get());
  } catch (...) {  // nothing was begun
    group_->under_way.take_back(*operation);
    throw;
  }
  try {
    outcome = enqueue(calls);
  } catch (const CudaError& error) {  // some of the calls may have been
    outcome = outcome_of(error);
  }
  if (outcome.kind != Outcome::Kind::done) {
    failure_.fail_by(failure_.failure_in(*operation), outcome);
    if (outcome.result == abi::Result::invalid_argument) throw_refused(operation->describe(), outcome.text);
    group_->status->throw_failure();
  }
  try {
    operation->end_event()->record(group_->stream.get());
  } catch (const CudaError& error) {
    failure_.fail_by(failure_.failure_in(*operation), outcome_of(error));
    group_->status->throw_failure();
  }
  group_->under_way.launch(*operation);
  Watch::of_process().wake();
  return operation;
}

// In the place of the group's failure, which it has brought about.
void GroupCalls::throw_refused(const std::string& operation, const std::string& why) {
  try {
    group_->status->throw_failure();
  } catch (const Error&) {
    throw InvalidArgument(operation + " is refused by NCCL: " + why);
  }
}

void GroupCalls::order_behind_callers(const Operation& operation) {
  for (auto* const stream : operation.streams()) {
    if (stream == group_->stream.get()) continue;
    require_no_capture(stream);
    before_.record(stream);
    before_.hold_up(group_->stream.get());
  }
}

Outcome GroupCalls::enqueue(std::span<const Collective> calls) {
  const process_group::Membership& who = group_->place.who;
  const LaunchPlace place{who.rank, who.size, words(), group_->stream.get()};
  Communicator& communicator = *group_->communicator;
  const NcclLibrary& nccl = communicator.library();
  return communicator.enqueue([&](abi::Comm comm) {
    abi::Result result = abi::Result::success;
    for (const Collective& call : calls) {
      result = launch(nccl, call, place, comm);
      if (result != abi::Result::success && result != abi::Result::in_progress) break;
    }
    return result;
  });
}

}  // namespace ddp::nccl_backend
