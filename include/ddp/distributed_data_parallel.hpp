// Data-parallel training: keeps the parameters of all ranks equal and averages their gradients while backward runs.
//
//   ddp::DistributedDataParallel model(world, parameters);  // verifies, then broadcasts from rank 0
//   for (const auto& batch : sampler.batches(epoch, 8, ddp::LastBatch::drop)) {
//     auto step = model.begin_step();
//     forward(batch);
//     backward([&](std::size_t p) { step.ready(p); });      // a full bucket starts its all-reduce
//     step.finish();                                        // gradients are now the mean over ranks
//     optimizer.step();
//   }
//
// Gradients live in buckets, and buckets in memory registered with the group, so no gradient is ever copied. Buckets
// are filled in the reverse order of the parameters, which is about the order in which backward makes gradients ready.
// A bucket's all-reduce starts when it is full and those before it have started, so all ranks launch in one order.
//
// Threads: one thread at a time, the same for begin_step, ready and finish.
// Copies:  a copy is another handle to the same model, which ends with the last of them; a step does not keep it. A
//          call on a handle that was moved from, or on a step whose model has ended, throws InvalidArgument.
// End:     destroyed with a step under way, or before the collectives of a cancelled step are complete, it gives up on
//          the group: the others would wait for the rest in vain.
// Fork:    a forked child has no part in the model, and may do nothing but destroy it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddp/communication_hook.hpp"
#include "ddp/export.hpp"
#include "ddp/memory.hpp"
#include "ddp/parameter.hpp"
#include "ddp/process_group.hpp"

namespace ddp {

namespace gradient_engine {
struct ModelBuckets;
struct ModelGradients;
}  // namespace gradient_engine

inline namespace DDP_ABI {

// When the buckets are filled anew in the order in which gradients really become ready.
enum class RebuildBuckets : std::uint8_t {
  off,        // only by rebuild_buckets(), or by load() of a Checkpointer that has the model: the address of a gradient
              // never changes unless the program asks for it
  automatic,  // once, in the first begin_step() after a step with Sync::on whose success all ranks know (on a GPU one
              // step later). For programs that call gradient(i) after each begin_step(), and keep no address longer
};

// What finish() makes of a parameter that some rank did not use in any micro-batch since the last synchronised step.
enum class Unused : std::uint8_t {
  error,  // GradientError on every rank
  zeros,  // its gradient counts as zeros on the ranks that did not use it
  keep,  // as zeros if a rank used it. If no rank did, is_unused() says so, a ShardedOptimizer skips the parameter, and
         // finish() leaves the gradient as begin_step() left it: zeros, or without zero_gradients its old bits. Without
         // zero_gradients a rank copies the gradients that it does not use, and join() copies all gradients, which
         // takes the memory of all gradients once more. It costs a byte of communication for each parameter. On a GPU,
         // finish() waits for the device
};

// What happens when a rank has fewer inputs than others and calls join().
enum class UnevenInputs : std::uint8_t {
  off,               // join() is refused, and the others would wait for this rank until their timeout
  divide_by_all,     // gradients are sums over the ranks that are left, divided by size(): each sample counts alike
  divide_by_active,  // gradients are means over the ranks that are left. Not with a hook whose gradients are no means
                     // over all ranks, such as post_local_sgd()
  stop,              // all ranks stop at the first that ends: finish() says so
};

// How the buffers of a model (what it keeps beside parameters, such as running means) stay equal on all ranks. Rank 0's
// are broadcast when the model is made, whatever this says.
enum class BufferSync : std::uint8_t {
  none,       // no more than that
  broadcast,  // begin_step(Sync::on) broadcasts those of rank 0, or of the lowest rank that has not called join()
  average,    // finish() of a step with Sync::on averages them over all ranks, also those that have called join()
};

// As bucket_cap_bytes: tries a few caps in the first 24 steps with Sync::on that go well, and keeps those with the
// least time for a step, the same on all ranks. It moves the gradients, and so needs RebuildBuckets::automatic.
constexpr std::size_t kAutomaticBucketCap = static_cast<std::size_t>(-1);

// Options of a DistributedDataParallel, the same on all ranks.
struct DistributedDataParallelOptions {
  std::size_t first_bucket_cap_bytes = 1 << 20;  // small, so that the first all-reduce starts early
  std::size_t bucket_cap_bytes = 25 << 20;       // a bucket closes at or over its cap; a parameter is never split.
                                                 // Or kAutomaticBucketCap
  bool zero_gradients = true;                    // begin_step zeroes; off where backward overwrites every gradient
  RebuildBuckets rebuild_buckets = RebuildBuckets::off;  // when gradients may move
  Unused unused = Unused::error;                         // a parameter that is not ready at the end of a step
  UnevenInputs uneven_inputs = UnevenInputs::off;  // not off costs 4 bytes per rank; on a GPU, finish() then waits
  bool static_graph = false;                       // every step uses the same parameters equally often, see Step::ready
  bool wait_in_finish = false;  // finish() waits for a GPU too, so its errors are known before the optimizer steps
  // If a gradient is infinite or NaN on any rank when it becomes ready, finish() throws GradientError on all ranks. The
  // error names parameters, ranks and the step, counted as HookCall::step. Costs a pass over the gradients. On a
  // GPU, finish() then waits for the device.
  bool check_finite = false;
  std::vector<Parameter> buffers{};  // of any type; names differ from those of parameters. Memory outlives the model
  BufferSync buffer_sync = BufferSync::broadcast;           // of `buffers`
  std::shared_ptr<CommunicationHook> communication_hook{};  // null: an all-reduce that averages
  // For a hook that puts its results elsewhere, as ShardedOptimizer does: the memory of gradients goes back to the
  // system as soon as a bucket has gone through the hook, and gradients are zero after finish(). A model of one or two
  // buckets and at most 16 MiB keeps the memory. ready() then waits, at the start of a bucket, for the one before. In
  // host memory only.
  bool release_gradients = false;
  CollectiveOptions collective{};  // timeout and stream of the engine's own collectives
};

// Whether a step averages gradients, or accumulates them for a later step.
enum class Sync : std::uint8_t {
  on,   // finish() averages over ranks
  off,  // finish() leaves this rank's sums alone; the next step adds to them
};

// A model whose gradients are averaged over the ranks of a group. What it promises about threads and copies, and an
// example, are at the top of this file.
class DDP_EXPORT DistributedDataParallel {
 public:
  class Impl;
  class DDP_EXPORT Step;

  // Collective. Compares names, shapes, types and options over all ranks, then broadcasts the values from rank 0.
  // Parameters are float32, float64, float16 or bfloat16, and gradients of the same type: those of 16 bits are summed
  // in float32, and their mean is rounded. For float32 master weights see ShardedOptimizer.
  // Throws MismatchError, with both sides of the first difference, on every rank; InvalidArgument for a model without
  // parameters, a name used twice, a shape that does not fit, a type or a device that is not supported, values that are
  // not aligned to their type.
  DistributedDataParallel(ProcessGroup group, std::vector<Parameter> parameters,
                          const DistributedDataParallelOptions& options = {});

  // Where backward writes (or adds) the gradient of parameter `index`: as many elements as the parameter, of its type,
  // in its device's memory. The index is the handle; the address is the same until the buckets are rebuilt: by
  // rebuild_buckets(); in begin_step() with RebuildBuckets::automatic, once, or with kAutomaticBucketCap up to five
  // times; in the first begin_step() after Checkpointer::load() took the buckets of a checkpoint.
  MemoryRange gradient(std::size_t index) const;

  // The same as elements of type T, such as float, or const float to read only. Throws InvalidArgument if the parameter
  // has another type.
  template <class T>
  Span<T> gradient(std::size_t index) const {
    return gradient(index).template as<T>();
  }

  std::size_t parameter_count() const;  // indices are 0 to parameter_count() - 1
  std::size_t bucket_count() const;     // another one after a rebuild of the buckets, perhaps

  // A line for each bucket, in the order in which they are reduced:
  //   bucket 0: float32, 4096 bytes: head.weight, head.bias
  std::string describe_buckets() const;

  // The gradients of each bucket, one after the other with padding between them, which is zero: for what is done with
  // all gradients after finish(). Addresses as gradient(). Throws InvalidArgument if a hook leaves no gradients there.
  std::vector<MemoryRange> bucket_memory() const;

  // Collective, between the finish() of a step with Sync::on and the next begin_step(). Fills the buckets anew, in the
  // order in which gradients became ready on rank 0 in its last finished step with Sync::on, so that the first
  // all-reduce begins as early as it can. All gradients are zero then, and their addresses may be new. Throws
  // GradientError on a rank whose gradients are not averaged yet; that rank must not go on alone. Throws Error on all
  // ranks if there is no memory for the new buckets: the model has no gradients then, and the next begin_step() asks
  // for it again.
  void rebuild_buckets();

  // With Unused::keep: whether no rank used parameter `index` in any of the micro-batches that the last finish()
  // averaged. The same on all ranks; false before the first finish(). Throws InvalidArgument without Unused::keep.
  [[nodiscard]] bool is_unused(std::size_t index) const;

  // From the next step on, the parameter is frozen, or no more. A frozen one is neither awaited nor unused: ready()
  // must not be called for it (GradientError), and its gradient is zero. A bucket whose parameters are all frozen is
  // not reduced. Call it between a step with Sync::on and the next begin_step(), else it throws GradientError, and on
  // every rank alike: if ranks differ, the next finish() throws MismatchError on all ranks (on a GPU the one after it),
  // which names the first parameter; the group stays usable. Takes no collective. On a GPU, finish() of the first step
  // after a change waits for the device.
  void set_frozen(std::size_t index, bool is_frozen);

  // With the option uneven_inputs: this rank has no more inputs. Takes part in the steps of the other ranks, with zeros
  // for its gradients, until all ranks have called join(). Every rank calls it at the end of its inputs.
  //
  // after_each_step: called after each such step, with the gradients of the others in place. It does what the program
  //                  does after finish(), such as the optimizer's step and set_frozen(), so that parameters and the
  //                  optimizer's state stay equal on all ranks.
  //
  // With UnevenInputs::stop it returns after one step, and calls nothing. Steps with Sync::off are this rank's own and
  // need nothing of the others. Steps that another rank cancels are left out. Throws what finish() throws, after which
  // it may be called again; GradientError if gradients of this rank are not averaged yet; InvalidArgument without the
  // option. The collectives' timeout bounds each step.
  void join(const std::function<void()>& after_each_step = {});

  // Collective, where begin_step() with Sync::on could be. Throws what the next finish() would throw of the step before
  // it. For the end of training on a GPU, where an error of the last step is not known in its own finish(). Nothing is
  // left to tell on a CPU, or with wait_in_finish.
  void check();

  // Starts a step. Gradients are zero, or, after a step with Sync::off, what that step left. Throws GradientError while
  // another step is unfinished, unless that step failed; what the collectives of a cancelled step failed with.
  // If the stream of the options is being captured, the step becomes part of a CUDA graph: see "Steps as CUDA graphs"
  // in docs/gradient_engine.md. Throws InvalidArgument there for options by which ranks tell each other something in
  // each step, GradientError if the first steps have not yet settled where the gradients are.
  Step begin_step(Sync sync = Sync::on);

  // One micro-batch. It is over after finish() or cancel(), whatever these throw, and when a collective of it failed;
  // ready() and finish() then throw GradientError. A Step that is destroyed by an exception, before it is over, is
  // cancelled; what cancel() would throw is dropped.
  class [[nodiscard]] DDP_EXPORT Step {
   public:
    Step(Step&&) noexcept = default;
    Step& operator=(Step&&) = delete;
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;
    ~Step();

    // Says that the gradient of parameter `index` is written and no longer touched until finish(). Launches what is
    // complete by now. Throws GradientError for a parameter that is ready already, InvalidArgument for a bad index.
    // With Sync::off it only records the use.
    // With the option static_graph, a parameter may become ready several times in a step, after each write to its
    // gradient. The first step with Sync::on counts the calls, and starts all its all-reduces in finish(). Later ones
    // start an all-reduce after as many calls as in that step. Steps with Sync::off are not counted.
    void ready(std::size_t index);

    // Ends backward: waits until all gradients are averaged. On a GPU the host does not wait, and the gradients are
    // averaged on the stream of the options. With Sync::off it ends the micro-batch, and does nothing else.
    //
    // Throws on every rank:
    //   GradientError  a rank left a parameter unused in all micro-batches since the last synchronised step (see the
    //                  option unused); a step of a static graph has other counts of ready() than the first; with
    //                  check_finite a gradient is infinite or NaN. The error names parameters and ranks. Or a rank
    //                  cancelled the step: the error names that rank, the highest if there are several
    //   MismatchError  ranks have frozen different parameters; the error names the first one
    // The gradients of that step are undefined then, the group stays usable, and the next begin_step() starts anew. On
    // a GPU an error of a step comes in the finish() of the next step with Sync::on, or in check(), after the
    // optimizer has used the gradients. With wait_in_finish, check_finite, Unused::keep or uneven inputs it comes at
    // once.
    //
    // Returns how many ranks had inputs in the last step with Sync::on that went well: size(), unless a rank has called
    // join(). With UnevenInputs::stop, less than size() means that this step does not count and that training ends.
    int finish();

    // Gives up on this step and on the micro-batches before it that are not averaged; their gradients are undefined.
    // Waits for nobody (on a GPU: for the device to do the synchronised step before). Nothing for a Step that is over.
    //   all ranks cancel   no rank throws; the next begin_step() starts anew on all
    //   one rank cancels   with Sync::on the other ranks' finish() throws GradientError and names this rank; the next
    //                      begin_step() starts anew on all. With Sync::off the others are told nothing: what this rank
    //                      accumulated so far is missing in their averages
    // With a communication hook it waits for the hook's collectives, and so for the other ranks, up to their timeout.
    // To keep in step with the others it begins the collectives of the step that are left: the memory of the gradients,
    // and of buffers that are averaged, must not be touched until the next begin_step(), which waits for them. Throws
    // what the group fails with; on a GPU also what finish() would throw of the synchronised step before.
    void cancel();

   private:
    friend class DistributedDataParallel;
    Step(const std::shared_ptr<Impl>& model, std::uint64_t number);
    std::shared_ptr<Impl> require_model() const;

    std::weak_ptr<Impl> model_;
    std::uint64_t number_;
    int exceptions_;  // under way when it was made
  };

 private:
  friend struct gradient_engine::ModelBuckets;
  friend struct gradient_engine::ModelGradients;
  Impl& require_model() const;

  std::shared_ptr<Impl> impl_;
};

}  // namespace DDP_ABI
}  // namespace ddp
