#include "worker_runtime/backends/nccl/cuda_memory.hpp"

#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "worker_runtime/backends/nccl/cuda.hpp"
#include "worker_runtime/backends/nccl/event_wait.hpp"

namespace ddp::nccl_backend {

namespace {

using process_group::DeviceMemory;
using process_group::Flag;
using process_group::FlagReading;

constexpr std::size_t kFlagBytesMax = sizeof(double);

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

void* place_of(const Flag& flag) {
  return static_cast<std::byte*>(flag.range.data) + flag.index * size_of(flag.range.type);
}

// Where flags are copied to, and the event behind the copies. Both cost too much to make in each step.
struct FlagCopies {
  explicit FlagCopies(std::size_t count) : room(count), memory(count * kFlagBytesMax) {}

  std::size_t room;
  PinnedMemory memory;
  Event copied;
};

class CudaMemory : public DeviceMemory, public std::enable_shared_from_this<CudaMemory> {
 public:
  CudaMemory(int device, std::shared_ptr<GroupStatus> status);

  Device device() const override { return {Device::Kind::cuda, device_}; }
  void zero(const MemoryRange& range, void* stream) override;
  void write_flag(const Flag& flag, bool is_raised, void* stream) override;
  bool reads_at_once() const override { return false; }
  std::unique_ptr<FlagReading> begin_read_flags(std::span<const Flag> flags, void* stream) override;
  void wait_for_all() override;
  void copy_to_host(void* to, const void* from, std::size_t bytes, void* stream) override;
  void copy_from_host(void* to, const void* from, std::size_t bytes, void* stream) override;

 private:
  class Reading;

  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, void* stream);
  std::unique_ptr<FlagCopies> take_copies(std::size_t count);
  void give_back(std::unique_ptr<FlagCopies> copies);
  void throw_if_failed() const {
    if (status_) status_->throw_if_failed();
  }

  int device_;
  std::shared_ptr<GroupStatus> status_;
  PinnedMemory ones_;  // what a raised flag is copied from: a double, then a float
  std::mutex mutex_;
  std::vector<std::unique_ptr<FlagCopies>> spare_;  // guarded by mutex_
};

class CudaMemory::Reading : public FlagReading {
 public:
  Reading(std::shared_ptr<CudaMemory> memory, std::unique_ptr<FlagCopies> copies, std::size_t count)
      : memory_(std::move(memory)), copies_(std::move(copies)), count_(count) {}
  ~Reading() override { memory_->give_back(std::move(copies_)); }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

  bool is_raised() override {
    EventWaits::of_process().wait(copies_->copied, memory_->device_);
    memory_->throw_if_failed();
    const std::byte* const bytes = copies_->memory.data();
    for (std::size_t i = 0; i < count_ * kFlagBytesMax; ++i) {
      if (bytes[i] != std::byte{0}) return true;  // 0 is all zeros in either type
    }
    return false;
  }

 private:
  std::shared_ptr<CudaMemory> memory_;
  std::unique_ptr<FlagCopies> copies_;
  std::size_t count_;
};

CudaMemory::CudaMemory(int device, std::shared_ptr<GroupStatus> status)
    : device_(device), status_(std::move(status)), ones_(sizeof(double) + sizeof(float)) {
  const double wide = 1;
  const float narrow = 1;
  std::memcpy(ones_.data(), &wide, sizeof wide);
  std::memcpy(ones_.data() + sizeof wide, &narrow, sizeof narrow);
}

void CudaMemory::zero(const MemoryRange& range, void* stream) {
  if (range.count == 0) return;
  const DeviceGuard guard(device_);
  check(cudaMemsetAsync(range.data, 0, range.bytes(), stream_of(stream)), "zeroing device memory");
}

void CudaMemory::write_flag(const Flag& flag, bool is_raised, void* stream) {
  const DeviceGuard guard(device_);
  const std::size_t bytes = size_of(flag.range.type);
  if (!is_raised) {
    return check(cudaMemsetAsync(place_of(flag), 0, bytes, stream_of(stream)), "writing a flag");
  }
  const std::byte* const one = ones_.data() + (flag.range.type == DataType::float64 ? 0 : sizeof(double));
  check(cudaMemcpyAsync(place_of(flag), one, bytes, cudaMemcpyHostToDevice, stream_of(stream)), "writing a flag");
}

std::unique_ptr<FlagReading> CudaMemory::begin_read_flags(std::span<const Flag> flags, void* stream) {
  const DeviceGuard guard(device_);
  auto copies = take_copies(flags.size());
  std::memset(copies->memory.data(), 0, copies->room * kFlagBytesMax);
  for (std::size_t i = 0; i < flags.size(); ++i) {
    check(cudaMemcpyAsync(copies->memory.data() + i * kFlagBytesMax, place_of(flags[i]), size_of(flags[i].range.type),
                          cudaMemcpyDeviceToHost, stream_of(stream)),
          "reading a flag");
  }
  copies->copied.record(stream_of(stream));
  return std::make_unique<Reading>(shared_from_this(), std::move(copies), flags.size());
}

std::unique_ptr<FlagCopies> CudaMemory::take_copies(std::size_t count) {
  const std::lock_guard lock(mutex_);
  while (!spare_.empty()) {
    auto copies = std::move(spare_.back());
    spare_.pop_back();
    if (copies->room >= count) return copies;
  }
  return std::make_unique<FlagCopies>(count);
}

// Memory that a copy may still be on its way to is not used again, nor freed before that has come.
void CudaMemory::give_back(std::unique_ptr<FlagCopies> copies) {
  try {
    const DeviceGuard guard(device_);
    if (!copies->copied.has_come()) return;  // cudaFreeHost() waits for it
  } catch (const CudaError&) {
    return;
  }
  const std::lock_guard lock(mutex_);
  spare_.push_back(std::move(copies));
}

void CudaMemory::copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, void* stream) {
  if (bytes == 0) return;
  const DeviceGuard guard(device_);
  Event reached;
  const auto wait = [&] {
    reached.record(stream_of(stream));
    EventWaits::of_process().wait(reached, device_);
  };
  wait();  // memory that is not pinned is copied in the call itself, which must not wait there for what is ahead of it
  check(cudaMemcpyAsync(to, from, bytes, kind, stream_of(stream)), "copying between host and device");
  wait();
}

void CudaMemory::wait_for_all() {
  const DeviceGuard guard(device_);
  check(cudaDeviceSynchronize(), "waiting for the device");
}

void CudaMemory::copy_to_host(void* to, const void* from, std::size_t bytes, void* stream) {
  copy(to, from, bytes, cudaMemcpyDeviceToHost, stream);
  throw_if_failed();
}

void CudaMemory::copy_from_host(void* to, const void* from, std::size_t bytes, void* stream) {
  copy(to, from, bytes, cudaMemcpyHostToDevice, stream);
}

}  // namespace

std::shared_ptr<process_group::DeviceMemory> make_cuda_memory(int device, std::shared_ptr<GroupStatus> status) {
  const DeviceGuard guard(device);
  return std::make_shared<CudaMemory>(device, std::move(status));
}

}  // namespace ddp::nccl_backend
