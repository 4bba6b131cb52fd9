#include "ddp/process_group.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "worker_runtime/agent_link/process_link.hpp"
#include "worker_runtime/process_group/backend.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"

namespace ddp {

namespace {

// The nodes answer each other within a second, or there is no step for all; a rank that waits longer waits in vain.
constexpr std::chrono::seconds kDecisionLimit{5};

using process_group::Collective;
using process_group::CollectiveKind;

[[noreturn]] void refuse(CollectiveKind kind, const std::string& what) {
  throw InvalidArgument(std::string(process_group::name_of(kind)) + ": " + what);
}

std::string text_of(const Device& device) {
  return (device.kind == Device::Kind::cpu ? "cpu:" : "cuda:") + std::to_string(device.index);
}

const ProcessGroup::Impl& require_group(const std::shared_ptr<ProcessGroup::Impl>& impl) {
  if (!impl) throw InvalidArgument("this ProcessGroup is empty\ntry:   make it with init_process_group()");
  return *impl;
}

void check_range(CollectiveKind kind, const char* which, const ConstMemoryRange& range, const Device& device) {
  if (range.device != device) {
    refuse(kind, std::string(which) + " is on " + text_of(range.device) + ", the group's memory on " + text_of(device));
  }
  const std::size_t element_bytes = size_of(range.type);
  if (range.count > SIZE_MAX / 2 / element_bytes) {
    refuse(kind, std::string(which) + " of " + std::to_string(range.count) + " elements is larger than any memory");
  }
  if (range.count > 0 && range.data == nullptr) {
    refuse(kind, std::string(which) + " of " + std::to_string(range.count) + " elements is null");
  }
  if (reinterpret_cast<std::uintptr_t>(range.data) % element_bytes != 0) {
    refuse(kind, std::string(which) + " is not aligned to " + name_of(range.type));
  }
}

// The larger range of an all_gather or reduce_scatter holds one part of the other's size for each rank.
void check_parts(CollectiveKind kind, const ConstMemoryRange& all, const ConstMemoryRange& one, int size) {
  if (all.type != one.type) {
    refuse(kind, std::string("input and output differ in type: ") + name_of(all.type) + " and " + name_of(one.type));
  }
  const auto parts = static_cast<std::size_t>(size);
  if (all.count % parts == 0 && all.count / parts == one.count) return;
  refuse(kind, "a range of " + std::to_string(all.count) + " elements is not " + std::to_string(size) + " times " +
                   std::to_string(one.count));
}

bool overlap(const ConstMemoryRange& a, const ConstMemoryRange& b) {
  const auto begin_a = reinterpret_cast<std::uintptr_t>(a.data);
  const auto begin_b = reinterpret_cast<std::uintptr_t>(b.data);
  return begin_a < begin_b + b.bytes() && begin_b < begin_a + a.bytes();
}

// Everything about a call that one rank can check.
Collective checked(const ProcessGroup::Impl& group, Collective collective, const CollectiveOptions& options) {
  const CollectiveKind kind = collective.kind;
  const process_group::Membership& who = group.membership();
  check_range(kind, "input", collective.input, group.backend().device());
  check_range(kind, "output", collective.output, group.backend().device());
  if (options.timeout.count() < 0) {
    refuse(kind, "a timeout of " + std::to_string(options.timeout.count()) + " ms");
  }
  if (collective.root < 0 || collective.root >= who.size) {
    refuse(kind, "root is " + std::to_string(collective.root) + ", ranks are 0 to " + std::to_string(who.size - 1));
  }
  if (collective.op != ReduceOp::sum && collective.op != ReduceOp::average) {
    refuse(kind, "there is no ReduceOp with the number " + std::to_string(static_cast<int>(collective.op)));
  }
  if (kind == CollectiveKind::all_gather) {
    check_parts(kind, collective.output, collective.input, who.size);
    const std::size_t own = static_cast<std::size_t>(who.rank) * collective.input.bytes();
    const bool in_place = collective.input.data == static_cast<const std::byte*>(collective.output.data) + own;
    if (!in_place && overlap(collective.input, collective.output)) {
      refuse(kind, "input overlaps output, and is not this rank's own part of it");
    }
  }
  if (kind == CollectiveKind::reduce_scatter) {
    check_parts(kind, collective.input, collective.output, who.size);
    if (overlap(collective.input, collective.output)) refuse(kind, "output overlaps input");
  }
  collective.timeout = options.timeout.count() > 0 ? options.timeout : group.timeout();
  collective.stream = options.stream;
  return collective;
}

Work submit(const std::shared_ptr<ProcessGroup::Impl>& impl, Collective collective, const CollectiveOptions& options) {
  const ProcessGroup::Impl& group = require_group(impl);
  return Work(group.backend().submit(checked(group, std::move(collective), options)));
}

void run(const std::shared_ptr<ProcessGroup::Impl>& impl, Collective collective, const CollectiveOptions& options) {
  const ProcessGroup::Impl& group = require_group(impl);
  group.backend().run(checked(group, std::move(collective), options));
}

Collective all_reduce_of(MemoryRange inout, ReduceOp op) {
  return {.kind = CollectiveKind::all_reduce, .input = inout, .output = inout, .op = op};
}

Collective broadcast_of(MemoryRange inout, int root) {
  return {.kind = CollectiveKind::broadcast, .input = inout, .output = inout, .root = root};
}

Collective all_gather_of(ConstMemoryRange input, MemoryRange output) {
  return {.kind = CollectiveKind::all_gather, .input = input, .output = output};
}

Collective reduce_scatter_of(ConstMemoryRange input, MemoryRange output, ReduceOp op) {
  return {.kind = CollectiveKind::reduce_scatter, .input = input, .output = output, .op = op};
}

}  // namespace

void Work::wait() {
  if (state_) state_->wait();
}

bool Work::is_completed() const { return !state_ || state_->is_completed(); }

int ProcessGroup::rank() const { return require_group(impl_).membership().rank; }
int ProcessGroup::size() const { return require_group(impl_).membership().size; }
int ProcessGroup::local_rank() const { return require_group(impl_).membership().local_rank; }
int ProcessGroup::local_size() const { return require_group(impl_).membership().local_size; }
Device ProcessGroup::device() const { return require_group(impl_).backend().device(); }
RoundId ProcessGroup::round() const { return require_group(impl_).membership().round; }
std::chrono::milliseconds ProcessGroup::timeout() const { return require_group(impl_).timeout(); }

void ProcessGroup::all_reduce(MemoryRange inout, ReduceOp op, CollectiveOptions options) {
  run(impl_, all_reduce_of(inout, op), options);
}

Work ProcessGroup::all_reduce_async(MemoryRange inout, ReduceOp op, CollectiveOptions options) {
  return submit(impl_, all_reduce_of(inout, op), options);
}

void ProcessGroup::broadcast(MemoryRange inout, int root, CollectiveOptions options) {
  run(impl_, broadcast_of(inout, root), options);
}

Work ProcessGroup::broadcast_async(MemoryRange inout, int root, CollectiveOptions options) {
  return submit(impl_, broadcast_of(inout, root), options);
}

void ProcessGroup::all_gather(ConstMemoryRange input, MemoryRange output, CollectiveOptions options) {
  run(impl_, all_gather_of(input, output), options);
}

Work ProcessGroup::all_gather_async(ConstMemoryRange input, MemoryRange output, CollectiveOptions options) {
  return submit(impl_, all_gather_of(input, output), options);
}

void ProcessGroup::reduce_scatter(ConstMemoryRange input, MemoryRange output, ReduceOp op, CollectiveOptions options) {
  run(impl_, reduce_scatter_of(input, output, op), options);
}

Work ProcessGroup::reduce_scatter_async(ConstMemoryRange input, MemoryRange output, ReduceOp op,
                                        CollectiveOptions options) {
  return submit(impl_, reduce_scatter_of(input, output, op), options);
}

void ProcessGroup::barrier(CollectiveOptions options) {
  Collective collective;
  collective.input.device = collective.output.device = device();
  run(impl_, collective, options);
}

RegisteredMemory ProcessGroup::allocate(std::size_t bytes, CollectiveOptions options) {
  const Impl& group = require_group(impl_);
  Collective collective{.kind = CollectiveKind::allocate};
  collective.input.device = collective.output.device = device();
  const auto timeout = checked(group, collective, options).timeout;
  if (bytes == 0) refuse(CollectiveKind::allocate, "0 bytes");
  return group.backend().allocate(bytes, timeout);
}

bool ProcessGroup::should_stop() {
  const Impl& group = require_group(impl_);
  auto* const link = agent_link::process_link();
  return link != nullptr && link->should_stop(group.membership().round.number, kDecisionLimit);
}

void ProcessGroup::abort(const std::string& reason) {
  require_group(impl_).backend().abort(reason, process_group::AbortCause::program);
}

}  // namespace ddp
