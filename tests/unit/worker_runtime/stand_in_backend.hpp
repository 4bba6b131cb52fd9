// A backend that records what reaches it and works, if at all, by what the test says: so that what lies above a backend
// is tested alone, and with a device where there is none.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "worker_runtime/process_group/process_group_impl.hpp"

namespace ddp::test {

using process_group::Collective;
using process_group::CollectiveKind;

inline constexpr Device kGpu{Device::Kind::cuda, 1};

class StandInWork : public Work::State {
 public:
  void wait() override { ++waits; }
  bool is_completed() const override { return is_done; }
  std::optional<std::chrono::nanoseconds> duration() const override {
    return is_done ? std::optional(took) : std::nullopt;
  }
  bool wait_until(std::chrono::steady_clock::time_point end) override {
    limit = end;
    return is_done;
  }
  void on_completed(Callback callback) override { callbacks.push_back(std::move(callback)); }

  int waits = 0;
  std::chrono::steady_clock::time_point limit{};
  std::vector<Callback> callbacks;
  bool is_done = false;
  std::chrono::nanoseconds took{};
};

// Memory of a "device" that is host memory in truth.
class StandInMemory : public process_group::DeviceMemory {
 public:
  explicit StandInMemory(Device device) : device_(device) {}

  Device device() const override { return device_; }
  void zero(const MemoryRange& range, void* stream) override {
    ++zeros;
    if (before_zero) before_zero(range);
    host_->zero(range, stream);
  }
  void copy(void* to, const void* from, std::size_t bytes, void* stream) override {
    host_->copy(to, from, bytes, stream);
  }
  std::shared_ptr<void> allocate(std::size_t bytes, void* stream) override {
    if (before_allocate) before_allocate();
    auto memory = host_->allocate(bytes, stream);
    allocated.push_back(memory);
    return memory;
  }
  void write(void* to, std::span<const std::byte> bytes, void* stream) override { host_->write(to, bytes, stream); }
  std::unique_ptr<process_group::HostCopy> begin_read(const void* from, std::size_t bytes, void* stream) override {
    ++reads_begun;
    if (before_begin_read) before_begin_read();
    return host_->begin_read(from, bytes, stream);
  }
  void wait_for_all() override { host_->wait_for_all(); }
  void copy_to_host(std::span<const Copy> given, void* stream) override {
    ++copies;
    if (before_copy_to_host) before_copy_to_host();
    host_->copy_to_host(given, stream);
  }
  void copy_from_host(std::span<const Copy> given, void* stream) override {
    ++copies;
    host_->copy_from_host(given, stream);
  }
  std::shared_ptr<std::byte[]> allocate_on_host(std::size_t bytes) override { return host_->allocate_on_host(bytes); }
  bool is_captured(void*) const override { return is_capturing; }

  bool is_capturing = false;
  int zeros = 0;
  int reads_begun = 0;
  int copies = 0;
  std::function<void()> before_copy_to_host;
  std::function<void()> before_allocate;
  std::function<void(const MemoryRange&)> before_zero;
  std::function<void()> before_begin_read;
  std::vector<std::weak_ptr<void>> allocated;

 private:
  Device device_;
  std::shared_ptr<process_group::DeviceMemory> host_ = process_group::host_memory();
};

// Arithmetic of a "device", which is that of the host.
class StandInArithmetic : public process_group::DeviceArithmetic {
 public:
  void scale(Ranges values, double factor, void* stream) override { host_->scale(values, factor, stream); }
  void scale_unless(const std::int32_t* flag, Ranges values, double factor, void* stream) override {
    host_->scale_unless(flag, values, factor, stream);
  }
  void clamp(Ranges values, double limit, void* stream) override { host_->clamp(values, limit, stream); }
  void find_non_finite(Ranges values, std::int32_t* found, void* stream) override {
    if (before_find_non_finite) before_find_non_finite();
    host_->find_non_finite(values, found, stream);
  }
  std::unique_ptr<process_group::HostCopy> sum_of_squares(Ranges values, void* stream) override {
    return host_->sum_of_squares(values, stream);
  }
  std::unique_ptr<process_group::HostCopy> norm(Ranges values, void* stream) override {
    return host_->norm(values, stream);
  }
  std::unique_ptr<process_group::HostCopy> clip_by_norm(Ranges values, double norm_max, void* stream) override {
    return host_->clip_by_norm(values, norm_max, stream);
  }
  void narrow(const MemoryRange& from, const MemoryRange& to, void* stream) override {
    host_->narrow(from, to, stream);
  }
  void widen(const MemoryRange& from, const MemoryRange& to, void* stream) override { host_->widen(from, to, stream); }
  void update(Pieces pieces, const tensor::AdamWNumbers& numbers, void* stream) override {
    host_->update(pieces, numbers, stream);
  }
  void update(Pieces pieces, const tensor::SgdNumbers& numbers, void* stream) override {
    host_->update(pieces, numbers, stream);
  }
  void begin_batch_norm(const tensor::BatchNormForward& pass, void* stream) override {
    host_->begin_batch_norm(pass, stream);
  }
  void end_batch_norm(const tensor::BatchNormForward& pass, void* stream) override {
    host_->end_batch_norm(pass, stream);
  }
  void begin_batch_norm(const tensor::BatchNormBackward& pass, void* stream) override {
    host_->begin_batch_norm(pass, stream);
  }
  void end_batch_norm(const tensor::BatchNormBackward& pass, void* stream) override {
    host_->end_batch_norm(pass, stream);
  }
  std::unique_ptr<process_group::HostCopy> hash(Ranges values, void* stream) override {
    return host_->hash(values, stream);
  }

  std::function<void()> before_find_non_finite;

 private:
  std::shared_ptr<process_group::DeviceArithmetic> host_ = process_group::host_arithmetic();
};

// What reached a StandInBackend; it outlives the backend.
struct Calls {
  std::vector<std::vector<Collective>> submitted;
  std::vector<Collective> run;
  struct Split {
    process_group::GroupMember of_new;
    std::vector<int> ranks;
    std::chrono::milliseconds timeout;
  };
  std::vector<Split> splits;
  std::vector<std::pair<std::string, process_group::AbortCause>> aborts;
  std::vector<std::shared_ptr<StandInWork>> works;
  process_group::Backend::FailureListener listener;
  std::function<void(const Collective&)> work;  // what a collective does, run or submitted; nothing where it is empty
  std::vector<std::shared_ptr<Calls>> of_sub_groups;
};

class StandInBackend : public process_group::Backend {
 public:
  StandInBackend(std::shared_ptr<Calls> calls, Device device)
      : calls_(std::move(calls)), memory_(std::make_shared<StandInMemory>(device)) {}

  Device device() const override { return memory_->device(); }

  std::shared_ptr<Work::State> submit(std::span<const Collective> collectives) override {
    calls_->submitted.emplace_back(collectives.begin(), collectives.end());
    for (const Collective& collective : collectives) perform(collective);
    calls_->works.push_back(std::make_shared<StandInWork>());
    return calls_->works.back();
  }

  void run(const Collective& collective) override {
    calls_->run.push_back(collective);
    perform(collective);
  }

  RegisteredMemory allocate(std::size_t bytes, std::chrono::milliseconds) override {
    const auto memory = std::make_shared<std::vector<double>>(bytes / sizeof(double) + 1);
    return {std::shared_ptr<void>(memory, memory->data()), bytes, device()};
  }

  std::unique_ptr<Backend> split(const process_group::GroupMember& of_new, const std::vector<int>& ranks,
                                 std::chrono::milliseconds timeout) override {
    calls_->splits.push_back({of_new, ranks, timeout});
    if (ranks.empty()) return nullptr;
    calls_->of_sub_groups.push_back(std::make_shared<Calls>());
    return std::make_unique<StandInBackend>(calls_->of_sub_groups.back(), device());
  }

  std::shared_ptr<process_group::DeviceMemory> device_memory() override { return memory_; }
  std::shared_ptr<process_group::DeviceArithmetic> device_arithmetic() override { return arithmetic_; }
  StandInMemory& memory() { return *memory_; }
  StandInArithmetic& arithmetic() { return *arithmetic_; }

  void abort(const std::string& reason, process_group::AbortCause cause) override {
    calls_->aborts.emplace_back(reason, cause);
  }

  void set_failure_listener(FailureListener tell) override { calls_->listener = std::move(tell); }

 private:
  void perform(const Collective& collective) {
    if (calls_->work) calls_->work(collective);
  }

  std::shared_ptr<Calls> calls_;
  std::shared_ptr<StandInMemory> memory_;
  std::shared_ptr<StandInArithmetic> arithmetic_ = std::make_shared<StandInArithmetic>();
};

inline ProcessGroup group_over(std::unique_ptr<process_group::Backend> backend, int rank, int size) {
  const process_group::GroupMember member{
      .rank = rank, .size = size, .local_rank = rank, .local_size = size, .round = {7, 8, 9}, .name = "group_0"};
  return ProcessGroup(std::make_shared<ProcessGroup::Impl>(member, std::chrono::seconds(5), std::move(backend), false));
}

}  // namespace ddp::test
