#include "worker_runtime/backends/nccl/group_memory.hpp"

#include <cstring>
#include <utility>

#include "worker_runtime/backends/nccl/event_wait.hpp"
#include "worker_runtime/core/failure/failure_message.hpp"
#include "worker_runtime/core/failure/fingerprint.hpp"

namespace ddp::nccl_backend {

namespace {

using process_group::Collective;
using process_group::CollectiveKind;

// Memory of the device that NCCL works on without staging, where it can be had.
class BucketMemory {
 public:
  explicit BucketMemory(std::shared_ptr<const GroupState> group)
      : group_(std::move(group)), communicator_(*group_->communicator) {}
  ~BucketMemory() {
    if (data_ == nullptr || group_->fork_guard.in_forked_child()) return;
    try {
      give_back();
    } catch (const CudaError&) {  // it is lost with what else the device holds
    }
  }
  BucketMemory(const BucketMemory&) = delete;
  BucketMemory& operator=(const BucketMemory&) = delete;

  // The error of the attempt, which is not thrown: the other ranks are to hear it.
  cudaError_t allocate(std::size_t bytes, cudaStream_t stream);

  void register_it(std::size_t bytes) { handle_ = communicator_.register_memory(data_, bytes); }
  bool is_registered() const { return handle_ != nullptr; }
  void deregister() { communicator_.deregister(std::exchange(handle_, nullptr)); }
  void* data() const { return data_; }

 private:
  void give_back() {
    const DeviceGuard guard(group_->device);
    static_cast<void>(cudaDeviceSynchronize());  // as cudaFree() does: whatever still works on it comes to its end
    const bool was_registered = handle_ != nullptr;
    const bool has_failed = group_->status->has_failed();
    if (!has_failed) deregister();
    // Else, and where that came too late, its registration goes with the communicator: while NCCL is not done with
    // that, the memory is not free.
    const bool goes_with_it = has_failed || communicator_.is_aborted();
    if (was_registered && goes_with_it && !communicator_.has_ended(kNcclsPatience)) return;
    if (is_nccls_) {
      static_cast<void>(communicator_.library()->mem_free(data_));
    } else {
      static_cast<void>(cudaFree(data_));
    }
  }

  std::shared_ptr<const GroupState> group_;
  Communicator& communicator_;  // the group's
  void* data_ = nullptr;
  void* handle_ = nullptr;
  bool is_nccls_ = false;
};

cudaError_t BucketMemory::allocate(std::size_t bytes, cudaStream_t stream) {
  const NcclLibrary& nccl = communicator_.library();
  is_nccls_ = nccl->mem_alloc(&data_, bytes) == abi::Result::success;
  if (!is_nccls_) {
    static_cast<void>(cudaGetLastError());
    data_ = nullptr;
    if (const cudaError_t code = cudaMalloc(&data_, bytes); code != cudaSuccess) {
      if (is_sticky(code)) check(code, "allocating device memory");
      static_cast<void>(cudaGetLastError());
      data_ = nullptr;
      return code;
    }
  }
  check(cudaMemsetAsync(data_, 0, bytes, stream), "zeroing device memory");
  return cudaSuccess;
}

}  // namespace

GroupMemory::GroupMemory(std::shared_ptr<GroupState> group, GroupCalls& calls, FailureHandler& failure)
    : group_(std::move(group)), calls_(calls), failure_(failure), words_on_host_(calls.words_bytes()) {}

RegisteredMemory GroupMemory::allocate(std::size_t bytes, std::chrono::milliseconds timeout) {
  group_->status->throw_if_failed();
  const DeviceGuard guard(group_->device);
  const auto memory = std::make_shared<BucketMemory>(group_);
  const cudaError_t own_error = memory->allocate(bytes, group_->stream.get());
  if (own_error == cudaSuccess) memory->register_it(bytes);
  const Words all = exchange({static_cast<std::int64_t>(bytes), own_error, memory->is_registered(), 0}, bytes, timeout);
  require_same_sizes(all);
  bool is_registered_on_all = true;
  for (int rank = 0; rank < group_->place.who.size; ++rank) {
    const std::int64_t* const words = &all[static_cast<std::size_t>(rank) * kWordsPerRank];
    if (words[1] != cudaSuccess) {
      throw Error(core::no_memory_message(group_->place,
                                          {.rank = rank,
                                           .bytes = bytes,
                                           .memory = "device memory",
                                           .why = text_of(static_cast<cudaError_t>(words[1])),
                                           .advice = "a smaller size; `nvidia-smi` shows who else uses the GPU"}));
    }
    is_registered_on_all = is_registered_on_all && words[2] != 0;
  }
  if (!is_registered_on_all) memory->deregister();  // NCCL wants it so on all ranks or on none
  return {std::shared_ptr<void>(memory, memory->data()), bytes, {Device::Kind::cuda, group_->device}};
}

void GroupMemory::require_same_sizes(const Words& all) {
  std::vector<core::Fingerprint> calls;
  for (std::size_t at = 0; at < all.size(); at += kWordsPerRank) {
    calls.push_back({.kind = CollectiveKind::allocate, .count = static_cast<std::uint64_t>(all[at])});
  }
  const auto difference = core::first_difference(calls);
  if (!difference) return;
  Failure failure = group_->failure(core::Cause::mismatch, *difference);
  failure.number = group_->under_way.progress().called;
  failure_.fail(failure);
  group_->status->throw_failure();
}

// Collective: the words of every rank, rank after rank. It goes over the device and waits for it.
GroupMemory::Words GroupMemory::exchange(const std::array<std::int64_t, kWordsPerRank>& own, std::size_t bytes,
                                         std::chrono::milliseconds timeout) {
  constexpr std::size_t kOwnBytes = sizeof own;
  const std::size_t at = static_cast<std::size_t>(group_->place.who.rank) * kOwnBytes;
  const std::size_t all_bytes = calls_.words_bytes();
  cudaStream_t const stream = group_->stream.get();
  auto* const words = reinterpret_cast<std::byte*>(calls_.words());
  std::memcpy(words_on_host_.data() + at, own.data(), kOwnBytes);
  check(cudaMemcpyAsync(words + at, words_on_host_.data() + at, kOwnBytes, cudaMemcpyHostToDevice, stream),
        "copying to the device");
  const Device device{Device::Kind::cuda, group_->device};
  const Collective call{.kind = CollectiveKind::allocate,
                        .input = {nullptr, 0, DataType::uint8, device},
                        .output = {nullptr, bytes, DataType::uint8, device},
                        .timeout = timeout,
                        .stream = stream};
  const auto operation = calls_.begin({&call, 1});
  check(cudaMemcpyAsync(words_on_host_.data(), words, all_bytes, cudaMemcpyDeviceToHost, stream),
        "copying to the host");
  Event copied;
  copied.record(stream);
  EventWaits::of_process().wait(copied, group_->device);
  group_->status->throw_if_failed();
  Words all(all_bytes / sizeof(std::int64_t));
  std::memcpy(all.data(), words_on_host_.data(), all_bytes);
  return all;
}

}  // namespace ddp::nccl_backend
