// Performs the actions of the plan on a process group, and owns the memory of the gradients. Decides nothing.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddp/distributed_data_parallel.hpp"
#include "ddp/error.hpp"
#include "worker_runtime/engine/faults.hpp"
#include "worker_runtime/engine/gradient_memory.hpp"
#include "worker_runtime/engine/hook_runner.hpp"
#include "worker_runtime/engine/layout/layout.hpp"
#include "worker_runtime/engine/plan/plan.hpp"
#include "worker_runtime/process_group/device_memory.hpp"

namespace ddp::gradient_engine {

class Executor {
 public:
  // Collective: the ranks allocate the memory of the gradients together. Of the parameters, no values are used.
  // buffers: the model's own, none of them empty. hook: may be null. releases: gradients that have gone through the
  // hook give their memory back to the system, and are zero.
  Executor(ProcessGroup group, CollectiveOptions options, Layout layout, const std::vector<Parameter>& parameters,
           std::vector<MemoryRange> buffers, const std::shared_ptr<CommunicationHook>& hook, bool releases);

  // Performs one action. Returns the answer to Look and Peek, which lives until the next one; else null. Throws what a
  // collective failed with, GradientError for FindUnused, FindMiscounts, FindNonFinite and TellCancelled,
  // FrozenMismatch for FindFrozen.
  const Agreement* perform(const Action& action);

  // Broadcasts. Collective. If it throws, nothing works on this memory any more.
  void broadcast(const std::vector<MemoryRange>& values, int root);

  // Collective, between windows: allocates anew. The gradients are zero then, and their addresses new. If it throws,
  // there are no gradients until it is called again.
  void rebuild(Layout layout);

  // Between windows: gives back the memory of the copies that Keep made.
  void forget_kept() { kept_.clear(); }

  // After an action failed: nobody will look at results that are still to come.
  void forget_results() { results_.clear(); }

  // Waits for everything that was begun, also if a part of it failed: the memory is the caller's again afterwards.
  // Returns the first failure.
  std::exception_ptr wait_all();

  // Whether what is done now becomes part of a CUDA graph.
  bool is_captured() const { return device_memory_->is_captured(options_.stream); }

  // The plan's windows can't go on.
  bool has_hook_failed() const { return hook_ && hook_->has_failed(); }
  bool is_at_work() const { return !works_.empty() || (hook_ && hook_->is_at_work()); }
  const GradientMemory& memory() const { return memory_; }
  ProcessGroup& group() { return group_; }

 private:
  const Agreement* perform(const Drain&);
  const Agreement* perform(const BroadcastBuffers& action);
  const Agreement* perform(const AverageBuffers&);
  const Agreement* perform(const ZeroAll&);
  const Agreement* perform(const Zero& action);
  const Agreement* perform(const Keep& action);
  const Agreement* perform(const Restore& action);
  const Agreement* perform(const Reduce& action);
  const Agreement* perform(const FinishHooks&);
  const Agreement* perform(const Scale& action);
  const Agreement* perform(const TellUnused& action);
  const Agreement* perform(const Agree& action);
  const Agreement* perform(const Look&);
  const Agreement* perform(const Peek&);
  std::size_t write_flags(const Agreement& own);
  const Agreement* read(process_group::HostCopy& result);
  // What all ranks are told of.
  template <class AnyFault>
  const Agreement* perform(const AnyFault& action) {
    tell(group_, options_, memory_.names(), action);
  }

  ProcessGroup group_;
  std::shared_ptr<process_group::DeviceMemory> device_memory_;
  CollectiveOptions options_;
  GradientMemory memory_;
  std::vector<MemoryRange> buffers_;  // of the model; none is empty
  bool releases_;
  std::map<std::size_t, std::shared_ptr<void>> kept_;             // gradients, by parameter: what Keep copied last
  std::optional<HookRunner> hook_;                                // reduces the buckets, if there is one
  std::vector<Work> works_;                                       // begun and not yet waited for
  std::deque<std::unique_ptr<process_group::HostCopy>> results_;  // of the flags, the oldest first
  Agreement agreement_;                                           // the answer to the last Look
};

}  // namespace ddp::gradient_engine
