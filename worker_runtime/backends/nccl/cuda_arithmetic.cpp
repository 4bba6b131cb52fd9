#include "worker_runtime/backends/nccl/cuda_arithmetic.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "worker_runtime/backends/nccl/batch_norm_kernels.hpp"
#include "worker_runtime/backends/nccl/cuda.hpp"
#include "worker_runtime/backends/nccl/gradient_kernels.hpp"
#include "worker_runtime/backends/nccl/hash_kernel.hpp"
#include "worker_runtime/tensor/arithmetic.hpp"

namespace ddp::nccl_backend {

namespace {

using process_group::DeviceArithmetic;
using process_group::DeviceMemory;
using process_group::HostCopy;

constexpr DataType kTypes[] = {DataType::float32, DataType::float64, DataType::float16, DataType::bfloat16};

constexpr std::size_t kWorkBytesMin = (1 + kernels::kPartials) * sizeof(double);  // for the norm of a few ranges

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
    const Sums sums = begin_sums(values, stream);
    check(kernels::sum(sums.partials, sums.count, sums.result, as_stream(stream)), "adding squares");
    return end_sums(sums, stream);
  }

  std::unique_ptr<HostCopy> norm(Ranges values, void* stream) override {
    const DeviceGuard guard(device_);
    const Sums sums = begin_sums(values, stream);
    check(kernels::norm(sums.partials, sums.count, sums.result, as_stream(stream)), "adding squares");
    return end_sums(sums, stream);
  }

  std::unique_ptr<HostCopy> clip_by_norm(Ranges values, double norm_max, void* stream) override {
    const DeviceGuard guard(device_);
    if (std::all_of(values.begin(), values.end(), [](const MemoryRange& each) { return each.count == 0; })) {
      return norm(values, stream);  // there is no kernel that would write it
    }
    const Sums sums = begin_sums(values, stream);
    for_each_batch(values, [&](const kernels::Batch& batch) {
      check(kernels::clip(batch, sums.partials, sums.count, norm_max, sums.result, as_stream(stream)),
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

  std::unique_ptr<HostCopy> hash(Ranges values, void* stream) override {
    const DeviceGuard guard(device_);
    auto* const hashes = begin_use<std::uint64_t>(values.size(), stream);
    memory_->zero({hashes, values.size(), DataType::int64, memory_->device()}, stream);
    for (std::size_t first = 0; first < values.size(); first += kernels::kRangesAtOnce) {
      kernels::Batch batch;
      batch.type = DataType::uint8;
      for (const MemoryRange& each :
           values.subspan(first).first(std::min<std::size_t>(kernels::kRangesAtOnce, values.size() - first))) {
        batch.ranges[batch.count++] = {each.data, each.bytes()};
      }
      check(kernels::add_hashes(batch, hashes + first, as_stream(stream)), "hashing parameters");
    }
    auto copy = memory_->begin_read(hashes, values.size() * sizeof *hashes, stream);
    end_use(stream);
    return copy;
  }

  void begin_batch_norm(const tensor::BatchNormForward& pass, void* stream) override {
    begin_batch_norm_of(pass, stream);
  }
  void begin_batch_norm(const tensor::BatchNormBackward& pass, void* stream) override {
    begin_batch_norm_of(pass, stream);
  }
  void end_batch_norm(const tensor::BatchNormForward& pass, void* stream) override {
    const DeviceGuard guard(device_);
    check(kernels::end_batch_norm(pass, as_stream(stream)), "normalising a batch");
  }
  void end_batch_norm(const tensor::BatchNormBackward& pass, void* stream) override {
    const DeviceGuard guard(device_);
    check(kernels::end_batch_norm(pass, as_stream(stream)), "the gradients of a batch normalisation");
  }

 private:
  template <class Pass>
  void begin_batch_norm_of(const Pass& pass, void* stream) {
    const DeviceGuard guard(device_);
    auto* const partials = begin_use<double>(kernels::batch_norm_partials(pass.shape), stream);
    check(kernels::begin_batch_norm(pass, partials, as_stream(stream)), "the sums of a batch normalisation");
    end_use(stream);
  }

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

  // A norm, and the sums that lead to it.
  struct Sums {
    double* result = nullptr;
    double* partials = nullptr;
    std::size_t count = 0;
  };

  Sums begin_sums(Ranges values, void* stream) {
    std::size_t count = 0;
    for_each_batch(values, [&](const kernels::Batch&) { count += kernels::kPartials; });
    auto* const result = begin_use<double>(1 + count, stream);
    Sums sums{result, result + 1};
    for_each_batch(values, [&](const kernels::Batch& batch) {
      check(kernels::sum_squares(batch, sums.partials + sums.count, as_stream(stream)), "adding squares");
      sums.count += kernels::kPartials;
    });
    return sums;
  }

  std::unique_ptr<HostCopy> end_sums(const Sums& sums, void* stream) {
    auto copy = memory_->begin_read(sums.result, sizeof *sums.result, stream);
    end_use(stream);
    return copy;
  }

  // Device memory that a call works in, until end_use(). A call overwrites that of the call before, so its stream waits
  // for that one's.
  template <class Number>
  Number* begin_use(std::size_t count, void* stream) {
    const std::size_t bytes = count * sizeof(Number);
    // Smaller memory stays: to free it would make the host wait.
    if (work_.empty() || work_.back()->bytes < bytes) {
      work_.push_back(std::make_unique<Memory>(std::max(2 * bytes, kWorkBytesMin)));
    }
    if (!used_) used_.emplace();
    // The launch of a graph is ordered by its stream.
    if (!is_captured(as_stream(stream))) used_->hold_up(as_stream(stream));
    return static_cast<Number*>(work_.back()->memory.data());
  }

  void end_use(void* stream) {
    if (!is_captured(as_stream(stream))) used_->record(as_stream(stream));
  }

  struct Memory {
    explicit Memory(std::size_t bytes_) : bytes(bytes_), memory(bytes_) {}
    std::size_t bytes;
    DeviceBuffer memory;
  };

  int device_;
  std::shared_ptr<DeviceMemory> memory_;
  std::vector<std::unique_ptr<Memory>> work_;  // the last is used
  std::optional<Event> used_;                  // behind the last use
};

}  // namespace

std::shared_ptr<process_group::DeviceArithmetic> make_cuda_arithmetic(
    int device, std::shared_ptr<process_group::DeviceMemory> memory) {
  return std::make_shared<CudaArithmetic>(device, std::move(memory));
}

}  // namespace ddp::nccl_backend
