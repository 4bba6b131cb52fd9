#include "worker_runtime/backends/nccl/group_calls.hpp"

#include <algorithm>
#include <vector>

#include "worker_runtime/backends/nccl/captured_work.hpp"
#include "worker_runtime/backends/nccl/launch.hpp"
#include "worker_runtime/backends/nccl/watch.hpp"

namespace ddp::nccl_backend {

namespace {

using core::Cause;
using process_group::Collective;
using process_group::CollectiveKind;

// Of the callers, each once.
std::vector<cudaStream_t> streams_of(std::span<const Collective> calls) {
  std::vector<cudaStream_t> streams;
  for (const Collective& call : calls) {
    auto* const stream = static_cast<cudaStream_t>(call.stream);
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
  }
  return streams;
}

void require_no_wait_of_host(std::span<const Collective> calls) {
  for (const Collective& call : calls) {
    if (call.kind != CollectiveKind::barrier && call.kind != CollectiveKind::allocate) continue;
    throw InvalidArgument(std::string(name_of(call.kind)) +
                          ": the host waits for it, and so it can't be part of a CUDA graph\ntry:   call it before the "
                          "capture");
  }
}

std::size_t bytes_of_words(int size) { return static_cast<std::size_t>(size) * kWordsPerRank * sizeof(std::int64_t); }

Outcome outcome_of(const CudaError& error) {
  return {Outcome::Kind::failed, abi::Result::unhandled_cuda_error, error.what()};
}

}  // namespace

GroupCalls::GroupCalls(std::shared_ptr<GroupState> group, FailureHandler& failure)
    : group_(std::move(group)), failure_(failure), words_(bytes_of_words(group_->place.who.size)) {}

std::size_t GroupCalls::words_bytes() const { return bytes_of_words(group_->place.who.size); }

std::shared_ptr<Work::State> GroupCalls::begin(std::span<const Collective> calls) {
  group_->status->throw_if_failed();
  for (const Collective& call : calls) require_support(group_->communicator->library(), call);
  const DeviceGuard guard(group_->device);
  std::vector<cudaStream_t> streams = streams_of(calls);
  if (is_in_capture(streams)) return capture(calls, std::move(streams));
  const std::shared_ptr<Operation> operation = group_->under_way.enter(group_, calls, std::move(streams));
  Watch::of_process().wake();  // it looks after this one also while NCCL connects the ranks, and waits for them
  Outcome outcome;
  try {
    order_behind(operation->streams());
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

void GroupCalls::order_behind(const std::vector<cudaStream_t>& streams) {
  for (auto* const stream : streams) {
    if (stream == group_->stream.get()) continue;
    before_.record(stream);
    before_.hold_up(group_->stream.get());
  }
}

// The group's own stream is part of a capture from the first collective in it until the capture ends.
bool GroupCalls::is_in_capture(const std::vector<cudaStream_t>& streams) const {
  const bool is_own = has_captured_ && is_captured(group_->stream.get());
  const bool is_any = is_own || std::any_of(streams.begin(), streams.end(), is_captured);
  if (!is_any || std::all_of(streams.begin(), streams.end(), is_captured)) return is_any;
  throw InvalidArgument(
      "collectives of this process group are being captured into a CUDA graph, and the stream of this one is not"
      "\ntry:   end the capture before it, or give it the stream that is captured");
}

// The collective has no deadline and no record in the flight recorder, because nothing tells when a graph is launched.
std::shared_ptr<Work::State> GroupCalls::capture(std::span<const Collective> calls, std::vector<cudaStream_t> streams) {
  require_no_wait_of_host(calls);
  const std::shared_ptr<Event> end = group_->events->take();
  has_captured_ = true;
  order_behind(streams);
  const Outcome outcome = enqueue(calls);
  if (outcome.kind != Outcome::Kind::done) {
    failure_.fail_by(group_->failure(Cause::transport, outcome.text), outcome);
    group_->status->throw_failure();
  }
  end->record(group_->stream.get());
  Watch::of_process().wake();
  return std::make_shared<CapturedWork>(group_->device, end, std::move(streams));
}

Outcome GroupCalls::enqueue(std::span<const Collective> calls) {
  const process_group::GroupMember& who = group_->place.who;
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
