// How the gradients of a bucket become those of all ranks: by default an all-reduce that averages them, else what a
// hook of DistributedDataParallelOptions::communication_hook does. Hooks that send less: gradient_compression.hpp.
//
//   struct Sum : ddp::CommunicationHook {  // instead of the mean
//     std::string describe() const override { return "sum"; }
//     std::optional<ddp::Work> next(const ddp::HookCall& call) override {
//       if (call.stage > 0) return std::nullopt;
//       return call.group.all_reduce_async(call.bucket.gradients, ddp::ReduceOp::sum, call.options);
//     }
//   };
//
// A hook goes through stages. next() is called with stage 0 when a bucket is full and those before it have begun, while
// backward may still be running. What it returns is a collective; once that is complete, next() is called with the next
// stage, and so on until it returns std::nullopt: then the bucket's gradients are final. All stages but the first are
// called in finish(): the stage 1 of all buckets that have one, in the order of their numbers, then stage 2 of these,
// and so on. So all ranks make the same collectives in the same order, if the answers of their hooks differ in nothing
// but values.
//
// A hook sees the gradients of a bucket as they lie in memory, and owns the division by the number of ranks. On ranks
// that have called join(), gradients are zeros. A frozen or unused parameter's gradient is zero, too.
//
// Threads: the engine calls a hook on the thread that calls the engine. Use one hook for one model.
// Errors:  what next() throws ends the group for all ranks, with its text as the reason.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddp/export.hpp"
#include "ddp/memory.hpp"
#include "ddp/parameter.hpp"
#include "ddp/process_group.hpp"

namespace ddp {
inline namespace DDP_ABI {

struct GradientBucket {
  std::size_t number = 0;             // buckets of lower numbers begin before this one
  bool is_last = false;               // of the model's buckets
  MemoryRange gradients;              // of all its parameters; the padding between them is zero
  MemoryRange padded;                 // the same and zeros behind it: its count is a multiple of the number of ranks
  std::vector<std::size_t> indices;   // of its parameters in the model
  std::vector<Parameter> parameters;  // the same: names, shapes, and as values the gradients
};

struct HookCall {
  ProcessGroup& group;
  const GradientBucket& bucket;
  int stage;                  // >= 0
  CollectiveOptions options;  // timeout and stream of the engine's own collectives
};

class DDP_EXPORT CommunicationHook {
 public:
  virtual ~CommunicationHook();

  // What it is, with all options that must be the same on all ranks: "PowerSGD of rank 2". Making a
  // DistributedDataParallel compares it over the ranks, and throws MismatchError.
  virtual std::string describe() const = 0;

  // The buckets that next() will see from now on. Collective: called when the model is made, and after each rebuild of
  // the buckets. The memory of the gradients is new then. Throws InvalidArgument, on all ranks alike, for gradients
  // that it can't handle: of some type, say, or on a GPU. The group stays usable then.
  virtual void begin(ProcessGroup& group, const std::vector<GradientBucket>& buckets, CollectiveOptions options);

  // See above.
  virtual std::optional<Work> next(const HookCall& call) = 0;

  // What a checkpoint has to save of this rank, and to load into these places before training goes on; between steps.
  // Names are the same after each call. None by default.
  virtual std::vector<Parameter> state();

 protected:
  CommunicationHook() = default;
  CommunicationHook(const CommunicationHook&) = default;
  CommunicationHook& operator=(const CommunicationHook&) = default;
};

}  // namespace DDP_ABI
}  // namespace ddp
