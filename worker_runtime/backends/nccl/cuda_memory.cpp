#include "worker_runtime/backends/nccl/cuda_memory.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "worker_runtime/backends/nccl/cuda.hpp"
#include "worker_runtime/backends/nccl/event_wait.hpp"

namespace ddp::nccl_backend {

namespace {

using process_group::DeviceMemory;
using process_group::HostCopy;

constexpr std::size_t kStagedBytesMax = 1u << 20;  // copying these twice costs less than a second wait

using Copy = DeviceMemory::Copy;

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

std::size_t total_of(std::span<const Copy> copies) {
  std::size_t bytes = 0;
  for (const Copy& each : copies) bytes += each.bytes;
  return bytes;
}

bool is_pinned(const void* memory) {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, memory), "asking what memory is");
  return attributes.type == cudaMemoryTypeHost;
}

// The host's side of all of them.
template <class Pointer>
bool are_pinned(std::span<const Copy> copies, Pointer Copy::*host_side) {
  return std::all_of(copies.begin(), copies.end(),
                     [&](const Copy& each) { return each.bytes == 0 || is_pinned(each.*host_side); });
}

// The same with other memory on the host's side.
template <class Pointer>
std::vector<Copy> staged_copies(std::span<const Copy> copies, std::byte* memory, Pointer Copy::*host_side) {
  std::vector<Copy> staged(copies.begin(), copies.end());
  for (Copy& each : staged) {
    each.*host_side = memory;
    memory += each.bytes;
  }
  return staged;
}

// Host memory that the device copies to and from by itself, and the event behind the last copy. Both cost too much to
// make in each step.
struct Pinned {
  explicit Pinned(std::size_t bytes_) : bytes(bytes_), memory(bytes_) {}

  std::size_t bytes;
  PinnedMemory memory;
  Event copied;
};

class CudaMemory : public DeviceMemory, public std::enable_shared_from_this<CudaMemory> {
 public:
  CudaMemory(int device, std::shared_ptr<GroupStatus> status) : device_(device), status_(std::move(status)) {}

  Device device() const override { return {Device::Kind::cuda, device_}; }
  bool is_captured(void* stream) const override { return nccl_backend::is_captured(stream_of(stream)); }
  void zero(const MemoryRange& range, void* stream) override;
  void copy(void* to, const void* from, std::size_t bytes, void* stream) override;
  std::shared_ptr<void> allocate(std::size_t bytes, void* stream) override;
  void write(void* to, std::span<const std::byte> bytes, void* stream) override;
  std::unique_ptr<HostCopy> begin_read(const void* from, std::size_t bytes, void* stream) override;
  void wait_for_all() override;
  void copy_to_host(std::span<const Copy> copies, void* stream) override;
  void copy_from_host(std::span<const Copy> copies, void* stream) override;
  std::shared_ptr<std::byte[]> allocate_on_host(std::size_t bytes) override;

 private:
  class Reading;

  void begin(std::span<const Copy> copies, cudaMemcpyKind kind, void* stream) const;
  void wait(void* stream) const;
  std::unique_ptr<Pinned> take_pinned(std::size_t bytes);
  void give_back(std::unique_ptr<Pinned> pinned);
  void throw_if_failed() const {
    if (status_) status_->throw_if_failed();
  }

  int device_;
  std::shared_ptr<GroupStatus> status_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Pinned>> spare_;  // guarded by mutex_; copies may still be under way
};

class CudaMemory::Reading : public HostCopy {
 public:
  Reading(std::shared_ptr<CudaMemory> memory, std::unique_ptr<Pinned> pinned, std::size_t bytes)
      : memory_(std::move(memory)), pinned_(std::move(pinned)), bytes_(bytes) {}
  ~Reading() override { memory_->give_back(std::move(pinned_)); }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

  std::span<const std::byte> bytes() override {
    EventWaits::of_process().wait(pinned_->copied, memory_->device_);
    memory_->throw_if_failed();
    return {pinned_->memory.data(), bytes_};
  }

 private:
  std::shared_ptr<CudaMemory> memory_;
  std::unique_ptr<Pinned> pinned_;
  std::size_t bytes_;
};

// Of a value that a graph computes: each launch computes it again.
class CapturedReading : public HostCopy {
 public:
  std::span<const std::byte> bytes() override {
    throw InvalidArgument(
        "this value is computed by a CUDA graph, which may be launched often\ntry:   ask for it in a step that is not "
        "captured");
  }
};

void CudaMemory::zero(const MemoryRange& range, void* stream) {
  if (range.count == 0) return;
  const DeviceGuard guard(device_);
  check(cudaMemsetAsync(range.data, 0, range.bytes(), stream_of(stream)), "zeroing device memory");
}

void CudaMemory::copy(void* to, const void* from, std::size_t bytes, void* stream) {
  if (bytes == 0) return;
  const DeviceGuard guard(device_);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_of(stream)), "copying on the device");
}

std::shared_ptr<void> CudaMemory::allocate(std::size_t bytes, void* stream) {
  if (bytes == 0) return nullptr;
  const DeviceGuard guard(device_);
  const auto memory = std::make_shared<DeviceBuffer>(bytes);
  check(cudaMemsetAsync(memory->data(), 0, bytes, stream_of(stream)), "zeroing device memory");
  return {memory, memory->data()};
}

void CudaMemory::write(void* to, std::span<const std::byte> bytes, void* stream) {
  const DeviceGuard guard(device_);
  auto pinned = take_pinned(bytes.size());
  std::memcpy(pinned->memory.data(), bytes.data(), bytes.size());
  check(cudaMemcpyAsync(to, pinned->memory.data(), bytes.size(), cudaMemcpyHostToDevice, stream_of(stream)),
        "writing to the device");
  pinned->copied.record(stream_of(stream));
  give_back(std::move(pinned));
}

std::unique_ptr<HostCopy> CudaMemory::begin_read(const void* from, std::size_t bytes, void* stream) {
  const DeviceGuard guard(device_);
  if (is_captured(stream)) return std::make_unique<CapturedReading>();
  auto pinned = take_pinned(bytes);
  check(cudaMemcpyAsync(pinned->memory.data(), from, bytes, cudaMemcpyDeviceToHost, stream_of(stream)),
        "reading from the device");
  pinned->copied.record(stream_of(stream));
  return std::make_unique<Reading>(shared_from_this(), std::move(pinned), bytes);
}

// With the device current. Memory that a copy may still be on its way to, or from, is not taken.
std::unique_ptr<Pinned> CudaMemory::take_pinned(std::size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    for (auto& each : spare_) {
      if (each->bytes < bytes || !each->copied.has_come()) continue;
      std::swap(each, spare_.back());
      auto pinned = std::move(spare_.back());
      spare_.pop_back();
      return pinned;
    }
  }
  return std::make_unique<Pinned>(bytes);
}

void CudaMemory::give_back(std::unique_ptr<Pinned> pinned) {
  const std::lock_guard lock(mutex_);
  spare_.push_back(std::move(pinned));
}

void CudaMemory::begin(std::span<const Copy> copies, cudaMemcpyKind kind, void* stream) const {
  for (const Copy& each : copies) {
    if (each.bytes == 0) continue;
    check(cudaMemcpyAsync(each.to, each.from, each.bytes, kind, stream_of(stream)), "copying between host and device");
  }
}

void CudaMemory::wait(void* stream) const {
  Event reached;
  reached.record(stream_of(stream));
  EventWaits::of_process().wait(reached, device_);
}

void CudaMemory::wait_for_all() {
  const DeviceGuard guard(device_);
  check(cudaDeviceSynchronize(), "waiting for the device");
}

// Memory that is not pinned is copied in the call itself, which must not wait there for what is ahead of it; and then
// the copy is there when the call returns.
void CudaMemory::copy_to_host(std::span<const Copy> copies, void* stream) {
  const DeviceGuard guard(device_);
  const std::size_t bytes = total_of(copies);
  if (are_pinned(copies, &Copy::to)) {
    begin(copies, cudaMemcpyDeviceToHost, stream);
    wait(stream);
  } else if (bytes <= kStagedBytesMax) {
    auto pinned = take_pinned(bytes);
    const std::vector<Copy> staged = staged_copies(copies, pinned->memory.data(), &Copy::to);
    begin(staged, cudaMemcpyDeviceToHost, stream);
    wait(stream);
    for (std::size_t i = 0; i < copies.size(); ++i) copy_bytes(copies[i].to, staged[i].to, copies[i].bytes);
    give_back(std::move(pinned));
  } else {
    wait(stream);
    begin(copies, cudaMemcpyDeviceToHost, stream);
  }
  throw_if_failed();
}

void CudaMemory::copy_from_host(std::span<const Copy> copies, void* stream) {
  const DeviceGuard guard(device_);
  const std::size_t bytes = total_of(copies);
  const bool is_pinned = are_pinned(copies, &Copy::from);
  if (!is_pinned && bytes <= kStagedBytesMax) {
    auto pinned = take_pinned(bytes);
    const std::vector<Copy> staged = staged_copies(copies, pinned->memory.data(), &Copy::from);
    for (std::size_t i = 0; i < copies.size(); ++i) {
      copy_bytes(const_cast<void*>(staged[i].from), copies[i].from, copies[i].bytes);
    }
    begin(staged, cudaMemcpyHostToDevice, stream);
    wait(stream);
    return give_back(std::move(pinned));
  }
  if (!is_pinned) wait(stream);
  begin(copies, cudaMemcpyHostToDevice, stream);
  wait(stream);
}

std::shared_ptr<std::byte[]> CudaMemory::allocate_on_host(std::size_t bytes) {
  const DeviceGuard guard(device_);
  void* memory = nullptr;
  if (bytes > 0 && cudaMallocHost(&memory, bytes) == cudaSuccess) {
    return {static_cast<std::byte*>(memory), [](std::byte* pinned) { static_cast<void>(cudaFreeHost(pinned)); }};
  }
  static_cast<void>(cudaGetLastError());
  return std::shared_ptr<std::byte[]>(new std::byte[bytes]);
}

}  // namespace

std::shared_ptr<process_group::DeviceMemory> make_cuda_memory(int device, std::shared_ptr<GroupStatus> status) {
  const DeviceGuard guard(device);
  return std::make_shared<CudaMemory>(device, std::move(status));
}

}  // namespace ddp::nccl_backend
