#include "worker_runtime/backends/nccl/cuda_arithmetic.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "worker_runtime/backends/nccl/cuda.hpp"
#include "worker_runtime/backends/nccl/gradient_kernels.hpp"
#include "worker_runtime/tensor/arithmetic.hpp"

namespace ddp::nccl_backend {

namespace {

using process_group::DeviceArithmetic;
using process_group::DeviceMemory;
using process_group::HostCopy;

constexpr DataType kTypes[] = {DataType::float32, DataType::float64, DataType::float16, DataType::bfloat16};

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }

// Each launch takes ranges of one type, and only so many.
template <class Call>
void for_each_batch(DeviceArithmetic::Ranges values, const Call& call) {
  for (const DataType type : kTypes) {
    kernels::Batch batch;
    batch.type = type;
    for (const MemoryRange& each : values) {
      if (each.type != type || each.count == 0) continue;
      batch.ranges[batch.count++] = {each.data, each.count};
      if (batch.count < kernels::kRangesAtOnce) continue;
      call(batch);
      batch.count = 0;
    }
    if (batch.count > 0) call(batch);
  }
}

class CudaArithmetic : public DeviceArithmetic {
 public:
  CudaArithmetic(int device, std::shared_ptr<DeviceMemory> memory) : device_(device), memory_(std::move(memory)) {}

  void scale(Ranges values, double factor, void* stream) override { scale_unless(nullptr, values, factor, stream); }

  void scale_unless(const std::int32_t* flag, Ranges values, double factor, void* stream) override {
    const DeviceGuard guard(device_);
    for_each_batch(values, [&](const kernels::Batch& batch) {
      check(kernels::scale(batch, factor, flag, as_stream(stream)), "scaling gradients");
    });
  }

  void clamp(Ranges values, double limit, void* stream) override {
    const DeviceGuard guard(device_);
    for_each_batch(values, [&](const kernels::Batch& batch) {
      check(kernels::clamp(batch, tensor::limit_of_clamp(limit, batch.type), as_stream(stream)), "clamping gradients");
    });
  }

  void find_non_finite(Ranges values, std::int32_t* found, void* stream) override {
    const DeviceGuard guard(device_);
    memory_->zero({found, 1, DataType::int32, memory_->device()}, stream);
    for_each_batch(values, [&](const kernels::Batch& batch) {
      check(kernels::find_non_finite(batch, found, as_stream(stream)), "looking for infinite gradients");
    });
  }

  std::unique_ptr<HostCopy> sum_of_squares(Ranges values, void* stream) override {
    const DeviceGuard guard(device_);
    Sums& sums = begin_sums(values, stream);
    check(kernels::sum(sums.partials(), sums.count, sums.norm(), as_stream(stream)), "adding squares");
    return end_sums(sums, stream);
  }

  std::unique_ptr<HostCopy> norm(Ranges values, void* stream) override {
    const DeviceGuard guard(device_);
    Sums& sums = begin_sums(values, stream);
    check(kernels::norm(sums.partials(), sums.count, sums.norm(), as_stream(stream)), "adding squares");
    return end_sums(sums, stream);
  }

  std::unique_ptr<HostCopy> clip_by_norm(Ranges values, double norm_max, void* stream) override {
    const DeviceGuard guard(device_);
    if (std::all_of(values.begin(), values.end(), [](const MemoryRange& each) { return each.count == 0; })) {
      return norm(values, stream);  // there is no kernel that would write it
    }
    Sums& sums = begin_sums(values, stream);
    for_each_batch(values, [&](const kernels::Batch& batch) {
      check(kernels::clip(batch, sums.partials(), sums.count, norm_max, sums.norm(), as_stream(stream)),
            "clipping gradients");
    });
    return end_sums(sums, stream);
  }

  void narrow(const MemoryRange& from, const MemoryRange& to, void* stream) override {
    const DeviceGuard guard(device_);
    check(kernels::narrow(static_cast<const float*>(from.data), to.data, to.count, to.type, as_stream(stream)),
          "rounding gradients to 16 bits");
  }

  void widen(const MemoryRange& from, const MemoryRange& to, void* stream) override {
    const DeviceGuard guard(device_);
    check(kernels::widen(from.data, static_cast<float*>(to.data), to.count, from.type, as_stream(stream)),
          "widening gradients of 16 bits");
  }

  void update(Pieces pieces, const tensor::AdamWNumbers& numbers, void* stream) override {
    update_each(pieces, numbers, stream);
  }
  void update(Pieces pieces, const tensor::SgdNumbers& numbers, void* stream) override {
    update_each(pieces, numbers, stream);
  }

 private:
  template <class Numbers>
  void update_each(Pieces pieces, const Numbers& numbers, void* stream) {
    const DeviceGuard guard(device_);
    for (const DataType type : kTypes) {
      kernels::PieceBatch batch;
      batch.type = type;
      const auto launch = [&] {
        if (batch.count > 0) check(kernels::update(batch, numbers, as_stream(stream)), "a step of an optimizer");
        batch.count = 0;
      };
      for (const tensor::OptimizedPiece& each : pieces) {
        if (each.type != type || each.count == 0) continue;
        batch.pieces[batch.count++] = {each.p, each.g, each.m, each.v, each.rounded, each.count};
        if (batch.count == kernels::kPiecesAtOnce) launch();
      }
      launch();
    }
  }

  // Memory of the device for a norm, and the sums that lead to it.
  struct Sums {
    explicit Sums(std::size_t capacity_) : capacity(capacity_), memory((capacity_ + 1) * sizeof(double)) {}
    double* norm() const { return static_cast<double*>(memory.data()); }
    double* partials() const { return norm() + 1; }

    std::size_t capacity;
    std::size_t count = 0;
    DeviceBuffer memory;
  };

  // A call's sums overwrite those of the call before, so its stream waits for that one's.
  Sums& begin_sums(Ranges values, void* stream) {
    std::size_t count = 0;
    for_each_batch(values, [&](const kernels::Batch&) { count += kernels::kPartials; });
    // Smaller memory stays: to free it would make the host wait.
    if (sums_.empty() || sums_.back()->capacity < count) {
      sums_.push_back(std::make_unique<Sums>(std::max(2 * count, kernels::kPartials)));
    }
    Sums& sums = *sums_.back();
    if (!used_) used_.emplace();
    // The launch of a graph is ordered by its stream.
    if (!is_captured(as_stream(stream))) used_->hold_up(as_stream(stream));
    sums.count = 0;
    for_each_batch(values, [&](const kernels::Batch& batch) {
      check(kernels::sum_squares(batch, sums.partials() + sums.count, as_stream(stream)), "adding squares");
      sums.count += kernels::kPartials;
    });
    return sums;
  }

  std::unique_ptr<HostCopy> end_sums(const Sums& sums, void* stream) {
    auto copy = memory_->begin_read(sums.norm(), sizeof(double), stream);
    if (!is_captured(as_stream(stream))) used_->record(as_stream(stream));
    return copy;
  }

  int device_;
  std::shared_ptr<DeviceMemory> memory_;
  std::vector<std::unique_ptr<Sums>> sums_;  // the last is used
  std::optional<Event> used_;                // behind the last use
};

}  // namespace

std::shared_ptr<process_group::DeviceArithmetic> make_cuda_arithmetic(
    int device, std::shared_ptr<process_group::DeviceMemory> memory) {
  return std::make_shared<CudaArithmetic>(device, std::move(memory));
}

}  // namespace ddp::nccl_backend
