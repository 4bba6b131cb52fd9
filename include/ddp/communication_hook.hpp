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
// called in finish() (with the option release_gradients before the next bucket begins): the stage 1 of all buckets that
// have one, in the order of their numbers, then stage 2 of these, and so on. So all ranks begin the same collectives in
// the same order, provided that hooks decide by nothing that is different on another rank.
//
// A hook sees the gradients of a bucket as they lie in memory, and owns the division by the number of ranks. On ranks
// that have called join(), gradients are zeros. A frozen or unused parameter's gradient is zero, too; what a hook
// writes there does not stay if parameters_unused() names the parameter.
//
// Threads: the engine calls a hook on the thread that calls the engine. A hook serves one model at a time: another one
//          refuses it with InvalidArgument.
// Errors:  what a hook throws aborts the group, so that no rank waits for it; but for an InvalidArgument of the first
//          begin(), which all ranks have alike.
#pragma once

#include <cstddef>
#include <cstdint>
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

// What a hook is told of a bucket.
struct GradientBucket {
  std::size_t number = 0;             // buckets of lower numbers begin before this one
  bool is_last = false;               // of the model's buckets
  MemoryRange gradients;              // of all its parameters; the padding between them is zero
  MemoryRange padded;                 // the same and zeros behind it: its count is a multiple of the number of ranks
  std::vector<std::size_t> indices;   // of its parameters in the model
  std::vector<Parameter> parameters;  // the same: names, shapes, and as values the gradients
};

// One call of CommunicationHook::next().
struct HookCall {
  ProcessGroup& group;           // of the model
  const GradientBucket& bucket;  // as begin() was told of it
  int stage;                     // >= 0
  std::uint64_t step;            // of the model's steps with Sync::on, cancelled ones included; the same on all ranks
  CollectiveOptions options;     // timeout and stream of the engine's own collectives
};

// Derive from it to reduce gradients in another way. The stages and an example are at the top of this file.
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

  // Begins the collective of a stage and returns it, or std::nullopt if the gradients of the bucket are final. See the
  // stages at the top of this file.
  virtual std::optional<Work> next(const HookCall& call) = 0;

  // The memory of the last begin() is about to be given back, between steps: for a hook that uses it then. Another
  // begin() follows, unless there is no memory for it. A hook that has memory of its own gives it back here, and asks
  // for it anew in begin(): both may not fit beside each other, and a begin() that fails aborts the group. Does nothing
  // by default.
  virtual void gradients_end() noexcept;

  // The parameters whose gradients nobody uses in this step, the same on all ranks but for a cancelled step: frozen
  // ones; with Unused::keep also those that no rank used; all in the step of join() in which no rank has inputs. Called
  // after the last stage, in finish() and in each step of join(), once or more often. The last list of a step is
  // complete. In a step that fails or is cancelled, only frozen parameters are told. If ranks have frozen different
  // ones, finish() tells those that all ranks had frozen before, and cancel() those of its own rank. When a parameter
  // is told, its gradient is as the hook left it, and is not yet divided by the active ranks. With release_gradients it
  // is zero already, so what was sent for it is lost. It becomes zero, or what Unused::keep promises, afterwards, and
  // is zero if the parameter is told again in that step. A hook that updates parameters leaves these alone. A hook that
  // keeps what it does not send adds these gradients to it, because they were sent in vain. Does nothing by default.
  virtual void parameters_unused(const std::vector<std::size_t>& parameters) noexcept;

  // Whether gradients are, after the last stage, sums over all ranks of the group that are divided by its size(), up to
  // what a compression loses. UnevenInputs::divide_by_active needs that: the engine then multiplies them by size() /
  // ranks that still have inputs. False by default.
  virtual bool averages_over_all_ranks() const;

  // For a hook that averages over all ranks, and leaves its gradients elsewhere than in the buckets: multiplies those
  // of the last step by this factor. Called between the last stage and the end of finish(). Throws InvalidArgument by
  // default.
  virtual void scale_gradients(double factor);

  // Whether the gradients are in the bucket after the last stage, as they are by default. If not,
  // DistributedDataParallel::bucket_memory() throws.
  virtual bool leaves_gradients() const;

  // What a checkpoint has to save of this rank, and to load into these places before training goes on; between steps.
  // Names are the same until buckets are rebuilt. None by default.
  virtual std::vector<Parameter> state();

 protected:
  CommunicationHook() = default;  // for classes that derive from it
  CommunicationHook(const CommunicationHook&) = default;
  CommunicationHook& operator=(const CommunicationHook&) = default;
};

}  // namespace DDP_ABI
}  // namespace ddp
