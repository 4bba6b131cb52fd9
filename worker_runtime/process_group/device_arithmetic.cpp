#include "worker_runtime/process_group/device_arithmetic.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "worker_runtime/tensor/arithmetic.hpp"
#include "worker_runtime/tensor/checksum.hpp"
#include "worker_runtime/tensor/convert.hpp"

namespace ddp::process_group {

namespace {

class HostArithmetic : public DeviceArithmetic {
 public:
  void scale(Ranges values, double factor, void*) override {
    for (const MemoryRange& each : values) tensor::scale(each, factor);
  }

  void scale_unless(const std::int32_t* flag, Ranges values, double factor, void* stream) override {
    if (*flag == 0) scale(values, factor, stream);
  }

  void clamp(Ranges values, double limit, void*) override {
    for (const MemoryRange& each : values) tensor::clamp(each, limit);
  }

  void find_non_finite(Ranges values, std::int32_t* found, void*) override {
    *found = std::all_of(values.begin(), values.end(), tensor::is_finite) ? 0 : 1;
  }

  std::unique_ptr<HostCopy> sum_of_squares(Ranges values, void* stream) override {
    const double sum = squares_of(values);
    return host_memory()->begin_read(&sum, sizeof sum, stream);
  }

  std::unique_ptr<HostCopy> norm(Ranges values, void* stream) override {
    const double norm = std::sqrt(squares_of(values));
    return host_memory()->begin_read(&norm, sizeof norm, stream);
  }

  std::unique_ptr<HostCopy> clip_by_norm(Ranges values, double norm_max, void* stream) override {
    const double norm = std::sqrt(squares_of(values));
    if (norm > norm_max && !std::isinf(norm)) scale(values, norm_max / norm, stream);
    return host_memory()->begin_read(&norm, sizeof norm, stream);
  }

  void narrow(const MemoryRange& from, const MemoryRange& to, void*) override {
    tensor::narrow(static_cast<const float*>(from.data), static_cast<std::uint16_t*>(to.data), to.count, to.type);
  }

  void widen(const MemoryRange& from, const MemoryRange& to, void*) override {
    tensor::widen(static_cast<const std::uint16_t*>(from.data), static_cast<float*>(to.data), to.count, from.type);
  }

  void update(Pieces pieces, const tensor::AdamWNumbers& numbers, void*) override {
    for (const tensor::OptimizedPiece& each : pieces) tensor::update(each, numbers);
  }

  void update(Pieces pieces, const tensor::SgdNumbers& numbers, void*) override {
    for (const tensor::OptimizedPiece& each : pieces) tensor::update(each, numbers);
  }

  std::unique_ptr<HostCopy> hash(Ranges values, void* stream) override {
    std::vector<std::uint64_t> hashes;
    for (const MemoryRange& each : values) {
      hashes.push_back(tensor::hash_by_blocks({static_cast<const std::byte*>(each.data), each.bytes()}));
    }
    return host_memory()->begin_read(hashes.data(), hashes.size() * sizeof hashes[0], stream);
  }

  void begin_batch_norm(const tensor::BatchNormForward& pass, void*) override { tensor::begin_batch_norm(pass); }
  void end_batch_norm(const tensor::BatchNormForward& pass, void*) override { tensor::end_batch_norm(pass); }
  void begin_batch_norm(const tensor::BatchNormBackward& pass, void*) override { tensor::begin_batch_norm(pass); }
  void end_batch_norm(const tensor::BatchNormBackward& pass, void*) override { tensor::end_batch_norm(pass); }

 private:
  static double squares_of(Ranges values) {
    double squares = 0;
    for (const MemoryRange& each : values) squares += tensor::sum_of_squares(each);
    return squares;
  }
};

}  // namespace

std::shared_ptr<DeviceArithmetic> host_arithmetic() { return std::make_shared<HostArithmetic>(); }

}  // namespace ddp::process_group
