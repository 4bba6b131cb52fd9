#include "ddp/process_group.hpp"

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "worker_runtime/agent_link/process_link.hpp"
#include "worker_runtime/process_group/checks.hpp"
#include "worker_runtime/process_group/deadline_after.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"

namespace ddp {

namespace {

// The nodes answer each other within a second, or there is no step for all; a rank that waits longer waits in vain.
constexpr std::chrono::seconds kDecisionLimit{5};

using process_group::check;
using process_group::checked_timeout;
using process_group::Collective;
using process_group::CollectiveKind;
using process_group::require_group;
using Group = std::shared_ptr<ProcessGroup::Impl>;

Work submit(const Group& impl, Collective&& collective, const CollectiveOptions& options) {
  const ProcessGroup::Impl& group = require_group(impl);
  if (auto* const open = group.coalescing) {
    check(group, collective, open->options_for(options));
    return open->add(collective);
  }
  check(group, collective, options);
  return Work(group.backend().submit({&collective, 1}));
}

void run(const Group& impl, Collective&& collective, const CollectiveOptions& options) {
  const ProcessGroup::Impl& group = require_group(impl);
  process_group::require_not_coalescing(group, name_of(collective.kind));
  check(group, collective, options);
  group.backend().run(collective);
}

// While it lives the group's _async calls go into `coalescing`.
class CoalescingScope {
 public:
  CoalescingScope(ProcessGroup::Impl& group, process_group::Coalescing& coalescing) : group_(group) {
    group_.coalescing = &coalescing;
  }
  ~CoalescingScope() { group_.coalescing = nullptr; }
  CoalescingScope(const CoalescingScope&) = delete;
  CoalescingScope& operator=(const CoalescingScope&) = delete;

 private:
  ProcessGroup::Impl& group_;
};

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

Collective reduce_of(ConstMemoryRange input, MemoryRange output, int root, ReduceOp op) {
  return {.kind = CollectiveKind::reduce, .input = input, .output = output, .op = op, .root = root};
}

Collective gather_of(ConstMemoryRange input, MemoryRange output, int root) {
  return {.kind = CollectiveKind::gather, .input = input, .output = output, .root = root};
}

Collective scatter_of(ConstMemoryRange input, MemoryRange output, int root) {
  return {.kind = CollectiveKind::scatter, .input = input, .output = output, .root = root};
}

Collective all_to_all_of(ConstMemoryRange input, MemoryRange output) {
  return {.kind = CollectiveKind::all_to_all, .input = input, .output = output};
}

using Counts = std::vector<std::size_t>;
using process_group::PartCounts;

Collective all_gather_v_of(ConstMemoryRange input, MemoryRange output, const Counts& counts) {
  return {.kind = CollectiveKind::all_gather_v, .input = input, .output = output, .counts = PartCounts{{}, counts}};
}

Collective reduce_scatter_v_of(ConstMemoryRange input, MemoryRange output, const Counts& counts, ReduceOp op) {
  return {.kind = CollectiveKind::reduce_scatter_v,
          .input = input,
          .output = output,
          .op = op,
          .counts = PartCounts{counts, {}}};
}

Collective all_to_all_v_of(ConstMemoryRange input, const Counts& input_counts, MemoryRange output,
                           const Counts& output_counts) {
  return {.kind = CollectiveKind::all_to_all_v,
          .input = input,
          .output = output,
          .counts = PartCounts{input_counts, output_counts}};
}

Collective send_of(ConstMemoryRange input, int peer) {
  return {.kind = CollectiveKind::send, .input = input, .root = peer};
}

Collective receive_of(MemoryRange output, int peer) {
  return {.kind = CollectiveKind::receive, .output = output, .root = peer};
}

Collective receive_from_any_of(MemoryRange output, int& source) {
  return {.kind = CollectiveKind::receive, .output = output, .root = process_group::kAnyRank, .source = &source};
}

}  // namespace

void Work::wait() {
  if (state_) state_->wait();
}

bool Work::wait_for(std::chrono::milliseconds limit) {
  return !state_ || state_->wait_until(process_group::deadline_after(limit).end());
}

void Work::on_completed(std::function<void(std::exception_ptr error)> callback) {
  if (!callback) throw InvalidArgument("on_completed: an empty function\ntry:   a function that takes the error");
  if (state_) {
    state_->on_completed(std::move(callback));
  } else {
    State::call(callback, nullptr);
  }
}

bool Work::is_completed() const { return !state_ || state_->is_completed(); }

std::optional<std::chrono::nanoseconds> Work::duration() const { return state_ ? state_->duration() : std::nullopt; }

int ProcessGroup::rank() const { return require_group(impl_).member().rank; }
int ProcessGroup::size() const { return require_group(impl_).member().size; }
int ProcessGroup::local_rank() const { return require_group(impl_).member().local_rank; }
int ProcessGroup::local_size() const { return require_group(impl_).member().local_size; }
Device ProcessGroup::device() const { return require_group(impl_).backend().device(); }
RoundId ProcessGroup::round() const { return require_group(impl_).member().round; }
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

void ProcessGroup::reduce(ConstMemoryRange input, MemoryRange output, int root, ReduceOp op,
                          CollectiveOptions options) {
  run(impl_, reduce_of(input, output, root, op), options);
}

Work ProcessGroup::reduce_async(ConstMemoryRange input, MemoryRange output, int root, ReduceOp op,
                                CollectiveOptions options) {
  return submit(impl_, reduce_of(input, output, root, op), options);
}

void ProcessGroup::gather(ConstMemoryRange input, MemoryRange output, int root, CollectiveOptions options) {
  run(impl_, gather_of(input, output, root), options);
}

Work ProcessGroup::gather_async(ConstMemoryRange input, MemoryRange output, int root, CollectiveOptions options) {
  return submit(impl_, gather_of(input, output, root), options);
}

void ProcessGroup::scatter(ConstMemoryRange input, MemoryRange output, int root, CollectiveOptions options) {
  run(impl_, scatter_of(input, output, root), options);
}

Work ProcessGroup::scatter_async(ConstMemoryRange input, MemoryRange output, int root, CollectiveOptions options) {
  return submit(impl_, scatter_of(input, output, root), options);
}

void ProcessGroup::all_to_all(ConstMemoryRange input, MemoryRange output, CollectiveOptions options) {
  run(impl_, all_to_all_of(input, output), options);
}

Work ProcessGroup::all_to_all_async(ConstMemoryRange input, MemoryRange output, CollectiveOptions options) {
  return submit(impl_, all_to_all_of(input, output), options);
}

void ProcessGroup::all_gather_v(ConstMemoryRange input, MemoryRange output, const std::vector<std::size_t>& counts,
                                CollectiveOptions options) {
  run(impl_, all_gather_v_of(input, output, counts), options);
}

Work ProcessGroup::all_gather_v_async(ConstMemoryRange input, MemoryRange output,
                                      const std::vector<std::size_t>& counts, CollectiveOptions options) {
  return submit(impl_, all_gather_v_of(input, output, counts), options);
}

void ProcessGroup::reduce_scatter_v(ConstMemoryRange input, MemoryRange output, const std::vector<std::size_t>& counts,
                                    ReduceOp op, CollectiveOptions options) {
  run(impl_, reduce_scatter_v_of(input, output, counts, op), options);
}

Work ProcessGroup::reduce_scatter_v_async(ConstMemoryRange input, MemoryRange output,
                                          const std::vector<std::size_t>& counts, ReduceOp op,
                                          CollectiveOptions options) {
  return submit(impl_, reduce_scatter_v_of(input, output, counts, op), options);
}

void ProcessGroup::all_to_all_v(ConstMemoryRange input, const std::vector<std::size_t>& input_counts,
                                MemoryRange output, const std::vector<std::size_t>& output_counts,
                                CollectiveOptions options) {
  run(impl_, all_to_all_v_of(input, input_counts, output, output_counts), options);
}

Work ProcessGroup::all_to_all_v_async(ConstMemoryRange input, const std::vector<std::size_t>& input_counts,
                                      MemoryRange output, const std::vector<std::size_t>& output_counts,
                                      CollectiveOptions options) {
  return submit(impl_, all_to_all_v_of(input, input_counts, output, output_counts), options);
}

void ProcessGroup::send(ConstMemoryRange input, int peer, CollectiveOptions options) {
  run(impl_, send_of(input, peer), options);
}

Work ProcessGroup::send_async(ConstMemoryRange input, int peer, CollectiveOptions options) {
  return submit(impl_, send_of(input, peer), options);
}

void ProcessGroup::receive(MemoryRange output, int peer, CollectiveOptions options) {
  run(impl_, receive_of(output, peer), options);
}

Work ProcessGroup::receive_async(MemoryRange output, int peer, CollectiveOptions options) {
  return submit(impl_, receive_of(output, peer), options);
}

int ProcessGroup::receive_from_any(MemoryRange output, CollectiveOptions options) {
  int source = process_group::kAnyRank;
  run(impl_, receive_from_any_of(output, source), options);
  return source;
}

Work ProcessGroup::receive_from_any_async(MemoryRange output, int* source, CollectiveOptions options) {
  if (require_group(impl_).coalescing != nullptr) {
    throw InvalidArgument("receive_from_any_async within coalesce(), where ranks are named\ntry:   this call outside");
  }
  if (source == nullptr) throw InvalidArgument("receive_from_any: no place for the source");
  return submit(impl_, receive_from_any_of(output, *source), options);
}

void ProcessGroup::barrier(CollectiveOptions options) { run(impl_, {}, options); }
Work ProcessGroup::barrier_async(CollectiveOptions options) { return submit(impl_, {}, options); }

void ProcessGroup::monitored_barrier(CollectiveOptions options) { run(impl_, {.is_monitored = true}, options); }

Work ProcessGroup::coalesce(const std::function<void()>& calls, CollectiveOptions options) {
  const Group group = impl_;  // `calls` may let go of this one
  require_group(group);
  process_group::require_not_coalescing(*group, "coalesce");
  checked_timeout(*group, options, "coalesce");
  if (!calls) throw InvalidArgument("coalesce: an empty function\ntry:   a function that makes the calls");
  process_group::Coalescing coalescing(options);
  {
    const CoalescingScope scope(*group, coalescing);
    calls();
  }
  return coalescing.begin(group->backend());
}

RegisteredMemory ProcessGroup::allocate(std::size_t bytes, CollectiveOptions options) {
  const Impl& group = require_group(impl_);
  process_group::require_not_coalescing(group, "allocate");
  const auto timeout = checked_timeout(group, options, "allocate");
  if (bytes == 0) throw InvalidArgument("allocate: 0 bytes");
  return group.backend().allocate(bytes, timeout);
}

bool ProcessGroup::should_stop() {
  const Impl& group = require_group(impl_);
  auto* const link = agent_link::process_link();
  return link != nullptr && link->should_stop(group.member().round.number, kDecisionLimit);
}

void ProcessGroup::abort(const std::string& reason) { require_group(impl_).abort(reason); }

}  // namespace ddp
