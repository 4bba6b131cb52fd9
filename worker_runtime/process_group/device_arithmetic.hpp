// Arithmetic on gradients and parameters, where they are: in host memory, or in a device's.
//
// Values but for hashes are float32, float64, float16 or bfloat16; ranges of one call may differ in that. 16 bits are
// computed with in float32 and rounded to nearest even. Results have the same bits on every device and on every run,
// but for norms, and sums of a batch normalisation: these are sums in double, in an order of each device's own, the
// same on every run. A NaN may become another NaN.
//
// `stream` is that of CollectiveOptions, as for DeviceMemory. On a device a call makes the host wait for nothing, and
// what the ranges hold may be used by what the stream is given later.
//
// Lifetime: it does not need the group that it was taken from. Memory that a call works on outlives that work.
// Threads:  one caller at a time for each object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "ddp/memory.hpp"
#include "worker_runtime/process_group/device_memory.hpp"
#include "worker_runtime/tensor/batch_norm.hpp"
#include "worker_runtime/tensor/optimizer_step.hpp"

namespace ddp::process_group {

class DeviceArithmetic {
 public:
  virtual ~DeviceArithmetic() = default;

  using Ranges = std::span<const MemoryRange>;

  // Multiplies every element, in its own type.
  virtual void scale(Ranges values, double factor, void* stream) = 0;

  // The same, unless *flag, which lies on the device, is not 0 when the stream comes to it.
  virtual void scale_unless(const std::int32_t* flag, Ranges values, double factor, void* stream) = 0;

  // Brings every element into [-limit, limit]; a NaN stays one. limit: > 0.
  virtual void clamp(Ranges values, double limit, void* stream) = 0;

  // *found, which lies on the device, becomes 1 if an element is infinite or NaN, else 0.
  virtual void find_non_finite(Ranges values, std::int32_t* found, void* stream) = 0;

  // A double.
  virtual std::unique_ptr<HostCopy> sum_of_squares(Ranges values, void* stream) = 0;

  // A double: the square root of the sum of the squares.
  virtual std::unique_ptr<HostCopy> norm(Ranges values, void* stream) = 0;

  // The same. If it is larger than norm_max (> 0), and finite, all elements are multiplied by norm_max / norm.
  virtual std::unique_ptr<HostCopy> clip_by_norm(Ranges values, double norm_max, void* stream) = 0;

  // Between float32 and 16 bits: float16 or bfloat16. Both ranges have the same count, and don't overlap.
  virtual void narrow(const MemoryRange& from, const MemoryRange& to, void* stream) = 0;
  virtual void widen(const MemoryRange& from, const MemoryRange& to, void* stream) = 0;

  // Of each range, of whatever type, a std::uint64_t: tensor::hash_by_blocks() of its bytes.
  virtual std::unique_ptr<HostCopy> hash(Ranges values, void* stream) = 0;

  // One step of an optimizer, with the same numbers for all pieces.
  using Pieces = std::span<const tensor::OptimizedPiece>;
  virtual void update(Pieces pieces, const tensor::AdamWNumbers& numbers, void* stream) = 0;
  virtual void update(Pieces pieces, const tensor::SgdNumbers& numbers, void* stream) = 0;

  // As tensor/batch_norm.hpp has it.
  virtual void begin_batch_norm(const tensor::BatchNormForward& pass, void* stream) = 0;
  virtual void end_batch_norm(const tensor::BatchNormForward& pass, void* stream) = 0;
  virtual void begin_batch_norm(const tensor::BatchNormBackward& pass, void* stream) = 0;
  virtual void end_batch_norm(const tensor::BatchNormBackward& pass, void* stream) = 0;
};

// Of host memory.
std::shared_ptr<DeviceArithmetic> host_arithmetic();

}  // namespace ddp::process_group
