#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "ddp/gradient_compression.hpp"
#include "ddp/error.hpp"
#include "worker_runtime/engine/hooks/host_gradients_only.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"

namespace ddp {
namespace {

constexpr std::size_t kAlignment = 32;  // elements of a bucket's part of the memory: a cache line

class CompressedAllReduce : public CommunicationHook {
 public:
  explicit CompressedAllReduce(CompressionOptions options) : type_(options.type) {}

  std::string describe() const override { return std::string("compressed_all_reduce in ") + name_of(type_); }
  bool averages_over_all_ranks() const override { return true; }

  void begin(ProcessGroup& group, const std::vector<GradientBucket>& buckets, CollectiveOptions options) override {
    gradient_engine::require_float32(buckets, "compressed_all_reduce");
    std::size_t count = 0;
    offsets_.clear();
    for (const GradientBucket& bucket : buckets) {
      offsets_.push_back(count);
      count += (bucket.gradients.count + kAlignment - 1) / kAlignment * kAlignment;
    }
    arithmetic_ = group.impl()->backend().device_arithmetic();
    memory_ = {};  // of another model, if there was one
    memory_ = group.allocate(count * sizeof(std::uint16_t), options);
  }

  void gradients_end() noexcept override { memory_ = {}; }

  std::optional<Work> next(const HookCall& call) override {
    const MemoryRange& gradients = call.bucket.gradients;
    const MemoryRange sent(static_cast<std::uint16_t*>(memory_.data()) + offsets_[call.bucket.number], gradients.count,
                           type_, gradients.device);
    if (call.stage == 0) {
      arithmetic_->narrow(gradients, sent, call.options.stream);
      return call.group.all_reduce_async(sent, ReduceOp::average, call.options);
    }
    arithmetic_->widen(sent, gradients, call.options.stream);
    return std::nullopt;
  }

 private:
  DataType type_;
  std::shared_ptr<process_group::DeviceArithmetic> arithmetic_;
  RegisteredMemory memory_;
  std::vector<std::size_t> offsets_;  // by bucket, in elements
};

}  // namespace

std::shared_ptr<CommunicationHook> DDP_ABI::compressed_all_reduce(CompressionOptions options) {
  if (options.type != DataType::bfloat16 && options.type != DataType::float16) {
    throw InvalidArgument(std::string("gradients can't be sent as ") + name_of(options.type) +
                          "\nwhere: compressed_all_reduce\ntry:   bfloat16 or float16");
  }
  return std::make_shared<CompressedAllReduce>(options);
}

}  // namespace ddp
