// Where the gradients of a model lie: a layout, and the memory that it lays out. The memory is registered, unless it is
// to go back to the system after each use.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "ddp/error.hpp"
#include "ddp/memory.hpp"
#include "ddp/parameter.hpp"
#include "ddp/process_group.hpp"
#include "worker_runtime/engine/host_gradients.hpp"
#include "worker_runtime/engine/layout/layout.hpp"

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

  // Collective: memory for a layout, all zeros. What was there before is given back. is_released: gradients are
  // in host memory for release_to_system(). If that can't be had, the group is aborted.
  void allocate(ProcessGroup& group, Layout layout, bool is_released, CollectiveOptions options) {
    if (is_released) {
      flags_memory_ = group.allocate(layout.bytes - layout.flags_offset, options);
      allocate_released(group, layout.flags_offset);
      flags_ = static_cast<std::byte*>(flags_memory_.data());
    } else {
      memory_ = group.allocate(layout.bytes, options);
      flags_ = static_cast<std::byte*>(memory_.data()) + layout.flags_offset;
    }
    layout_ = std::move(layout);
    if (!is_released) return;
    for (const MemoryRange& bucket : buckets()) use_huge_pages(bucket);
  }

  const Layout& layout() const { return layout_; }
  const std::vector<std::string>& names() const { return names_; }  // by parameter
  std::string describe() const { return gradient_engine::describe(layout_, names_); }

  // Of all gradients, with their padding, in bytes.
  MemoryRange all() const { return {memory_.data(), layout_.flags_offset, DataType::uint8, memory_.device()}; }
  std::byte* flags() const { return flags_; }
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
  void allocate_released(ProcessGroup& group, std::size_t bytes) {
    try {
      memory_ = {};
      memory_ = RegisteredMemory(allocate_releasable(bytes), bytes, group.device());
    } catch (const Error&) {
      group.abort("no memory for gradients");
      throw;
    }
  }

  std::byte* at(std::size_t offset_bytes) const { return static_cast<std::byte*>(memory_.data()) + offset_bytes; }

  std::vector<std::string> names_;
  std::vector<std::size_t> counts_;  // of elements, by parameter
  Layout layout_;
  RegisteredMemory memory_;        // of gradients
  RegisteredMemory flags_memory_;  // if the flags are not in memory_
  std::byte* flags_ = nullptr;
};

}  // namespace ddp::gradient_engine
