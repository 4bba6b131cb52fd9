// Where the gradients of a model lie: a layout, and the memory that it lays out. The memory is registered, unless it is
// to go back to the system after each use.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstring>
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

  // Collective: memory for a layout, all zeros. What was there before is given back first, because a model may fit
  // once, but not twice. is_released: gradients are in host memory, and are released bucket by bucket. A small layout
  // of one or two buckets keeps its memory even so: zeros cost less than new pages, and two buckets may be in use at a
  // time anyway. If this throws, there is no memory. If it is this process alone that gets none, the group is aborted.
  void allocate(ProcessGroup& group, Layout layout, bool is_released, CollectiveOptions options) {
    memory_ = flags_memory_ = {};
    flags_ = nullptr;
    gives_back_ = is_released && (layout.buckets.size() > kKeptBucketsMax || layout.flags_offset > kKeptBytesMax);
    if (gives_back_) {
      flags_memory_ = group.allocate(layout.bytes - layout.flags_offset, options);
      allocate_to_give_back(group, layout.flags_offset);
      flags_ = static_cast<std::byte*>(flags_memory_.data());
    } else {
      memory_ = group.allocate(layout.bytes, options);
      flags_ = static_cast<std::byte*>(memory_.data()) + layout.flags_offset;
    }
    layout_ = std::move(layout);
    if (!gives_back_) return;
    for (const MemoryRange& bucket : buckets()) use_huge_pages(bucket);
  }

  // A part of it, which is zero then. Requires is_released.
  void release(const MemoryRange& part) const {
    if (gives_back_) return release_to_system(part);
    std::memset(part.data, 0, part.bytes());
  }

  bool is_there() const { return memory_.data() != nullptr; }
  const Layout& layout() const { return layout_; }
  const std::vector<std::string>& names() const { return names_; }  // by parameter
  std::string describe() const { return gradient_engine::describe(layout_, names_); }

  // Of all gradients, with their padding, in bytes. This and the following are empty where there is no memory.
  MemoryRange all() const {
    return {memory_.data(), is_there() ? layout_.flags_offset : 0, DataType::uint8, memory_.device()};
  }
  std::byte* flags() const { return flags_; }
  MemoryRange of(const Bucket& bucket) const {
    return {at(bucket.offset_bytes), is_there() ? bucket.count : 0, bucket.type, memory_.device()};
  }
  std::vector<MemoryRange> buckets() const {
    std::vector<MemoryRange> ranges;
    for (const Bucket& bucket : layout_.buckets) ranges.push_back(of(bucket));
    return ranges;
  }
  MemoryRange gradient(std::size_t parameter) const {
    const Slot& slot = layout_.slots[parameter];
    const Bucket& bucket = layout_.buckets[slot.bucket];
    return {at(bucket.offset_bytes + slot.offset_bytes), is_there() ? counts_[parameter] : 0, bucket.type,
            memory_.device()};
  }

 private:
  static constexpr std::size_t kKeptBucketsMax = 2;  // one that is reduced, and one that backward writes
  static constexpr std::size_t kKeptBytesMax = 16u << 20;

  void allocate_to_give_back(ProcessGroup& group, std::size_t bytes) {
    try {
      memory_ = RegisteredMemory(allocate_releasable(bytes), bytes, group.device());
    } catch (const Error&) {
      group.abort("no memory for gradients");
      throw;
    }
  }

  std::byte* at(std::size_t offset_bytes) const {
    return is_there() ? static_cast<std::byte*>(memory_.data()) + offset_bytes : nullptr;
  }

  std::vector<std::string> names_;
  std::vector<std::size_t> counts_;  // of elements, by parameter
  Layout layout_;
  RegisteredMemory memory_;        // of gradients
  RegisteredMemory flags_memory_;  // if the flags are not in memory_
  std::byte* flags_ = nullptr;
  bool gives_back_ = false;  // memory_ is for release_to_system()
};

}  // namespace ddp::gradient_engine
