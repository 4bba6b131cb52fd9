// Where the gradients of a model lie: a layout, and the registered memory that it lays out.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "ddp/memory.hpp"
#include "ddp/parameter.hpp"
#include "ddp/process_group.hpp"
#include "worker_runtime/engine/layout/layout.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"

namespace ddp::gradient_engine {

class GradientMemory {
 public:
  // Of the parameters, no values are used.
  explicit GradientMemory(const std::vector<Parameter>& parameters) {
    for (const Parameter& parameter : parameters) {
      names_.push_back(parameter.name);
      counts_.push_back(parameter.values.count);
    }
  }

  // Collective: memory for a layout, all zeros. What was there before is given back first, because a model may fit
  // once, but not twice. If this throws, there is no memory. is_sparse: gradients take host memory only when they are
  // written to.
  void allocate(ProcessGroup& group, Layout layout, bool is_sparse, CollectiveOptions options) {
    const std::size_t sparse_bytes = is_sparse ? layout.flags_offset : 0;
    memory_ = {};
    memory_ = process_group::allocate_sparse(group, layout.bytes, sparse_bytes, options);
    layout_ = std::move(layout);
  }

  bool is_there() const { return memory_.data() != nullptr; }
  const Layout& layout() const { return layout_; }
  const std::vector<std::string>& names() const { return names_; }  // by parameter
  std::string describe() const { return gradient_engine::describe(layout_, names_); }

  // Of all gradients, with their padding, in bytes.
  MemoryRange all() const { return {memory_.data(), layout_.flags_offset, DataType::uint8, memory_.device()}; }
  std::byte* flags() const { return at(layout_.flags_offset); }
  MemoryRange of(const Bucket& bucket) const {
    return {at(bucket.offset_bytes), bucket.count, bucket.type, memory_.device()};
  }
  std::vector<MemoryRange> buckets() const {
    std::vector<MemoryRange> ranges;
    for (const Bucket& bucket : layout_.buckets) ranges.push_back(of(bucket));
    return ranges;
  }
  MemoryRange gradient(std::size_t parameter) const {
    const Slot& slot = layout_.slots[parameter];
    const Bucket& bucket = layout_.buckets[slot.bucket];
    return {at(bucket.offset_bytes + slot.offset_bytes), counts_[parameter], bucket.type, memory_.device()};
  }

 private:
  std::byte* at(std::size_t offset_bytes) const {
    return is_there() ? static_cast<std::byte*>(memory_.data()) + offset_bytes : nullptr;
  }

  std::vector<std::string> names_;
  std::vector<std::size_t> counts_;  // of elements, by parameter
  Layout layout_;
  RegisteredMemory memory_;
};

}  // namespace ddp::gradient_engine
