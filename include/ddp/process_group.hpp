// Process groups: ranks that call collectives together.
//
// Every rank of a group calls the same collectives in the same order (send and receive: see there). All ranks get
// identical bits from an all_reduce, and the same inputs in the same layout give the same bits on every run. Ranks may
// be on several hosts, in any layout; a sum is then formed over the ranks of each host and over the hosts, so another
// layout may round otherwise.
//
// Backends: `cpu` works on host memory, `nccl` on that of one GPU; a group may have both. Each has every call below.
//
// Several groups: each is on its own, also one made of another (split, new_group). Threads may be at work in several
// at once; the failure of one is none of another's, but a rank that ends is missing in every group that it was in.
//
// Failures: nothing waits for ever. A rank that ends makes every other rank that needs it throw RankFailure within
// milliseconds (nccl: where NCCL notices it, or inside run_elastic); one that never calls makes the others throw
// TimeoutError at the deadline; one that calls something else makes all throw MismatchError (send, receive: the two).
// After any of these the group is of no further use, and each later call throws AbortedError with the first reason. The
// contents of the buffers of a failed collective are undefined. What one rank alone can see to be wrong (a size, a
// type, a device, a root) is InvalidArgument; nothing was begun then, and the group stays usable.
//
// Threads: one thread at a time calls a group; abort() may come from any thread.
// Fork:    a forked child has no part in the group; a call there throws InvalidArgument.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddp/error.hpp"
#include "ddp/export.hpp"
#include "ddp/memory.hpp"
#include "ddp/round.hpp"

namespace ddp {
inline namespace DDP_ABI {

// What becomes of the elements of all ranks. Integers wrap around, each in its own type. A sum or a maximum of booleans
// is true where any element is, a product or a minimum where all are; booleans have no average.
//   cpu   goes in the order of the ranks; floating-point types of 16 and 8 bits are accumulated in float32 and rounded
//         once, to nearest even (float8_e4m3fn: beyond 448 to NaN); min and max are NaN where the element of any rank
//         is NaN
//   nccl  goes in an order of its own, and may round types of 16 and 8 bits on the way; a NaN may be lost in its
//         min and max; what is beyond the largest float8 becomes that. It reduces float8 from NCCL 2.24 on, and on
//         GPUs from Hopper (9.0) on; other calls move float8 with any NCCL
enum class ReduceOp : std::uint8_t {
  sum,      // integers wrap around
  average,  // sum divided by the size of the group; integers round towards zero
  product,  // integers wrap around
  min,      // the smallest
  max,      // the largest
  // Sum of each rank's elements times CollectiveOptions::factor, which may differ from rank to rank: weights of unequal
  // batches, or a sum that must not overflow. The elements are multiplied first, in their own type, which the factor is
  // rounded to. Floating-point types only. (On a CPU it takes as much memory of its own as the input.)
  premul_sum,
};

// A collective under way. Copies share it. The memory it was given must stay valid and untouched until it has
// completed. Letting go of a Work cancels nothing (static_cast<void>() says that it is meant); an error that nobody
// waited for is thrown by the group's next call. Copies may be waited for by several threads.
class [[nodiscard]] DDP_EXPORT Work {
 public:
  class State;

  Work() = default;  // an empty Work, which has completed
  // For the library itself.
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // On a CPU: blocks until the collective has completed, throws what it failed with. On a GPU: orders the stream of the
  // call's options behind it and returns at once (barrier: blocks). Does nothing for an empty Work.
  void wait();

  // Blocks the host, on a GPU too, until the collective has completed or the limit is over: false for the latter, and
  // the collective goes on. Throws what it failed with. An empty Work has completed.
  [[nodiscard]] bool wait_for(std::chrono::milliseconds limit);

  // Whether wait() would return, or throw what the collective failed with, without blocking.
  [[nodiscard]] bool is_completed() const;

  // How long the collective took from the time that its turn came: on a CPU in the group's queue, waits for other ranks
  // included; on a GPU on the device, to about a microsecond. Of coalesced calls that of all as one. Empty until it has
  // completed, where it failed, and for an empty Work. It blocks for no rank and no device.
  std::optional<std::chrono::nanoseconds> duration() const;

  // Calls `callback` once, when the collective has completed (on a GPU: on the device), with null, or with what it
  // failed with, which then counts as waited for. At once, on this thread, where that has been; else on a thread of the
  // library's that does nothing else, one callback after the other, before the group's end returns. Others may have
  // been woken before. It must not throw (the process ends). It may call a group and let go of its last handle, but
  // holds up the callbacks behind it, and the end of their groups, for as long as it takes.
  void on_completed(std::function<void(std::exception_ptr error)> callback);

 private:
  std::shared_ptr<State> state_;
};

// Options of one call. Fields that a call does not use have no effect, except for `factor`.
struct CollectiveOptions {
  std::chrono::milliseconds timeout{0};  // from the call to completion; 0 takes the group's
  // On a stream that is being captured the collective becomes part of the CUDA graph (docs/nccl.md).
  void* stream = nullptr;  // cudaStream_t that writes the input and reads the output; unused on a CPU
  int tag = 0;             // of sends and receives, see there; >= 0
  double factor = 1;       // of ReduceOp::premul_sum, this rank's own; finite. Any other call has 1
};

// A group of ranks, and the collectives that they call. Copies are handles of one group. Each call of an empty group
// throws InvalidArgument. Failures and threads are at the top of this file.
//
// Each collective blocks until its result is there: on a CPU in memory, on a GPU for what comes after it on the stream
// of its options. The _async form returns at once with a Work to wait for. Collectives of one group complete in the
// order of their calls. At most 65,536 wait for their turn; one more throws Error and is not begun.
//
// All ranges are on device(); in a group of two backends on either device, all of one call on the same. `n` elements
// are the same number on all ranks, of the same type. Ranges that share a byte are refused unless said otherwise.
class DDP_EXPORT ProcessGroup {
 public:
  class Impl;

  ProcessGroup() = default;  // an empty group, of no ranks
  // For the library itself; programs call init_process_group().
  explicit ProcessGroup(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  int rank() const;                           // 0 <= rank < size
  int size() const;                           // how many ranks the group has
  int local_rank() const;                     // among the ranks of this host, as the launcher counts them
  int local_size() const;                     // how many ranks are on this host, as the launcher counts them
  Device device() const;                      // where this group's memory lives; in a group of two backends the GPU
  RoundId round() const;                      // the same on all ranks
  std::chrono::milliseconds timeout() const;  // of a collective whose options say none: InitOptions::timeout

  // Every element becomes the sum (or what else `op` says) over all ranks of that element.
  void all_reduce(MemoryRange inout, ReduceOp op = ReduceOp::sum, CollectiveOptions options = {});
  Work all_reduce_async(MemoryRange inout, ReduceOp op = ReduceOp::sum, CollectiveOptions options = {});

  // Every rank's memory becomes a copy of root's.
  void broadcast(MemoryRange inout, int root, CollectiveOptions options = {});
  Work broadcast_async(MemoryRange inout, int root, CollectiveOptions options = {});

  // output[r * n, (r + 1) * n) becomes rank r's input of n elements; output.count == size() * n.
  // The input may be this rank's own part of the output.
  void all_gather(ConstMemoryRange input, MemoryRange output, CollectiveOptions options = {});
  Work all_gather_async(ConstMemoryRange input, MemoryRange output, CollectiveOptions options = {});

  // output (n elements) becomes the sum (or what else `op` says) over all ranks of input[rank * n, (rank + 1) * n);
  // input.count == size() * n. The output may be this rank's own part of the input, whose other parts are then
  // undefined.
  void reduce_scatter(ConstMemoryRange input, MemoryRange output, ReduceOp op = ReduceOp::sum,
                      CollectiveOptions options = {});
  Work reduce_scatter_async(ConstMemoryRange input, MemoryRange output, ReduceOp op = ReduceOp::sum,
                            CollectiveOptions options = {});

  // On root, output (n elements, as the input) becomes the sum (or what else `op` says) over all ranks; it may be the
  // input itself. On all other ranks the output is empty ({}).
  void reduce(ConstMemoryRange input, MemoryRange output, int root, ReduceOp op = ReduceOp::sum,
              CollectiveOptions options = {});
  Work reduce_async(ConstMemoryRange input, MemoryRange output, int root, ReduceOp op = ReduceOp::sum,
                    CollectiveOptions options = {});

  // On root, output[r * n, (r + 1) * n) becomes rank r's input of n elements; output.count == size() * n, and the input
  // may be root's own part of it. On all other ranks the output is empty ({}).
  void gather(ConstMemoryRange input, MemoryRange output, int root, CollectiveOptions options = {});
  Work gather_async(ConstMemoryRange input, MemoryRange output, int root, CollectiveOptions options = {});

  // output (n elements) becomes root's input[rank * n, (rank + 1) * n). On root, input.count == size() * n, and the
  // output may be root's own part of it. On all other ranks the input is empty ({}).
  void scatter(ConstMemoryRange input, MemoryRange output, int root, CollectiveOptions options = {});
  Work scatter_async(ConstMemoryRange input, MemoryRange output, int root, CollectiveOptions options = {});

  // output[r * n, (r + 1) * n) becomes rank r's input[rank * n, (rank + 1) * n); both counts are size() * n.
  void all_to_all(ConstMemoryRange input, MemoryRange output, CollectiveOptions options = {});
  Work all_to_all_async(ConstMemoryRange input, MemoryRange output, CollectiveOptions options = {});

  // all_gather() where ranks have different counts, as MPI's of the same name; a part may be empty. Parts lie side by
  // side in the order of ranks. On a CPU all ranks find that they differ in the counts before any result is written:
  // here, in reduce_scatter_v() and in all_to_all_v().
  //
  // output becomes the inputs of all ranks: counts[r] elements of rank r, the same list on all ranks. The input, of
  // counts[rank] elements, may be this rank's own part of the output.
  void all_gather_v(ConstMemoryRange input, MemoryRange output, const std::vector<std::size_t>& counts,
                    CollectiveOptions options = {});
  Work all_gather_v_async(ConstMemoryRange input, MemoryRange output, const std::vector<std::size_t>& counts,
                          CollectiveOptions options = {});

  // reduce_scatter() with different counts: see all_gather_v().
  //
  // output, of counts[rank] elements, becomes the sum (or what else `op` says) over all ranks of the part `rank` of
  // their inputs; part r has counts[r] elements, the same list on all ranks. On a CPU it takes as much memory of its
  // own as size() outputs.
  void reduce_scatter_v(ConstMemoryRange input, MemoryRange output, const std::vector<std::size_t>& counts,
                        ReduceOp op = ReduceOp::sum, CollectiveOptions options = {});
  Work reduce_scatter_v_async(ConstMemoryRange input, MemoryRange output, const std::vector<std::size_t>& counts,
                              ReduceOp op = ReduceOp::sum, CollectiveOptions options = {});

  // all_to_all() with different counts: see all_gather_v().
  //
  // Part r of the input goes to rank r, and part r of the output comes from there: input_counts[r] elements here are
  // output_counts[rank] elements there.
  void all_to_all_v(ConstMemoryRange input, const std::vector<std::size_t>& input_counts, MemoryRange output,
                    const std::vector<std::size_t>& output_counts, CollectiveOptions options = {});
  Work all_to_all_v_async(ConstMemoryRange input, const std::vector<std::size_t>& input_counts, MemoryRange output,
                          const std::vector<std::size_t>& output_counts, CollectiveOptions options = {});

  // Between two ranks: the n-th send of one to the other meets the n-th receive there of the same tag (the options'),
  // which must be of the same count and type. `peer` is another rank. A rank that sends while its peer sends to it
  // waits in vain, unless both are in one coalesce() with their receives.
  //
  // A receive keeps messages of other tags that stand before its own, and their sends are complete then: 1,024 of them
  // and 64 MiB at most, of the ranks of this host, and as many of those of others. Beyond that it waits, until its
  // deadline, for a message that stands behind others. nccl: NCCL has no tags; one other than 0 is InvalidArgument.
  void send(ConstMemoryRange input, int peer, CollectiveOptions options = {});
  Work send_async(ConstMemoryRange input, int peer, CollectiveOptions options = {});
  void receive(MemoryRange output, int peer, CollectiveOptions options = {});
  Work receive_async(MemoryRange output, int peer, CollectiveOptions options = {});

  // The first message of the options' tag that comes from any other rank: returns which. Messages of one rank come in
  // the order of their sends; among ranks there is no order. It throws RankFailure once a rank has failed, or all have
  // left (with ranks on several hosts: TimeoutError at the deadline). Not within coalesce(). nccl: InvalidArgument.
  int receive_from_any(MemoryRange output, CollectiveOptions options = {});
  // `source` becomes that rank before the Work has completed; it must stay valid as long as the output.
  Work receive_from_any_async(MemoryRange output, int* source, CollectiveOptions options = {});

  // An _async call reads its input until its Work is over, and a temporary vector does not live as long.
  template <class T, class... More>
  Work all_gather_async(std::vector<T>&& input, More&&... more) = delete;
  template <class T, class... More>
  Work reduce_scatter_async(std::vector<T>&& input, More&&... more) = delete;
  template <class T, class... More>
  Work reduce_async(std::vector<T>&& input, More&&... more) = delete;
  template <class T, class... More>
  Work gather_async(std::vector<T>&& input, More&&... more) = delete;
  template <class T, class... More>
  Work scatter_async(std::vector<T>&& input, More&&... more) = delete;
  template <class T, class... More>
  Work all_to_all_async(std::vector<T>&& input, More&&... more) = delete;
  template <class T, class... More>
  Work all_gather_v_async(std::vector<T>&& input, More&&... more) = delete;
  template <class T, class... More>
  Work reduce_scatter_v_async(std::vector<T>&& input, More&&... more) = delete;
  template <class T, class... More>
  Work all_to_all_v_async(std::vector<T>&& input, More&&... more) = delete;
  template <class T, class... More>
  Work send_async(std::vector<T>&& input, More&&... more) = delete;

  // Complete once every rank has called it and all collectives before it have. It blocks the host on a GPU too.
  void barrier(CollectiveOptions options = {});
  Work barrier_async(CollectiveOptions options = {});

  // A barrier that tells who is missing: where it times out, ranks() of its TimeoutError has all that had not come by
  // then, on each rank that had. barrier() promises less: some of them, with ranks on several hosts those of the own
  // host or of others. (Where the lowest rank of a host is missing, the others of that host may name none of other
  // hosts; nccl: as barrier().) PyTorch tells rank 0 alone, and the others only that rank 0 did not answer. As after
  // every timeout the group is of no further use: ranks that came, and those that come yet, could not agree on whether
  // the barrier was.
  void monitored_barrier(CollectiveOptions options = {});

  // The _async calls that `calls` makes of this group are begun as one when `calls` returns: sends and receives among
  // them meet in any order, and many small ones cost as one. The Work of each of them is that of all; it can't be
  // waited for before. Their timeout is that of `options`, not their own; a call's stream, where it is null, that of
  // `options` too. On a CPU the collectives among them come first, in the order of their calls, and then all sends and
  // receives at once; of those to one peer, and from one, each begins when the one before it is complete. What goes
  // wrong in one is thrown for all. Calls that are not _async throw InvalidArgument in there. What `calls` throws comes
  // out of here, and nothing is begun. At most 65,536 in one. An empty Work where there were none.
  Work coalesce(const std::function<void()>& calls, CollectiveOptions options = {});

  // Collective over this group: the ranks that give one color (0 or above) become a group of their own, in the order of
  // (key, rank). Blocks until it is there. A negative color takes part and gets an empty ProcessGroup. The new group
  // has this one's timeout, round and devices, and ends on its own; local_rank() stays what the launcher says.
  ProcessGroup split(int color, int key = 0, CollectiveOptions options = {});

  // Collective over this group: ranks[i] becomes rank i of a new group; the rest get an empty ProcessGroup. The same
  // list on all ranks, else MismatchError (after which this group goes on).
  ProcessGroup new_group(const std::vector<int>& ranks, CollectiveOptions options = {});

  // Collective, with the same size on all. Throws InvalidArgument for 0 bytes, and Error on all ranks where one can't
  // have the memory (a cgroup's limit included). What is freed goes back to the system, but not its place in the shared
  // file: all that a group ever allocates, times the ranks of the host, counts against RLIMIT_FSIZE. After a call has
  // failed, ranks that have not noticed it yet may still write to the registered memory that it was given.
  RegisteredMemory allocate(std::size_t bytes, CollectiveOptions options = {});

  // Whether the program is to write its checkpoint and end with 0 now. Every rank calls it once for each step, at the
  // same place, and all get the same answer from the same call:
  //
  //   while (step < steps && !world.should_stop()) train_one_step(step++);
  //   save_checkpoint(step);
  //
  // When the job is to stop (ddprun got SIGTERM, ctrl-c or a hang-up, or a warning signal of --forward-signals), ddprun
  // asks all ranks which call can be the one, and tells them the latest of these: that call returns true on all of
  // them, and so do those after it. When all ranks have ended with 0, ddprun ends with 75: stopped on purpose, to be
  // started again. After SIGTERM, ctrl-c or a hang-up they have the grace (--shutdown-timeout) from the signal on for
  // the rest of the step and the checkpoint; where some worker does not call should_stop(), all are stopped by the
  // signal instead, as ever.
  //
  // It takes no collective, and costs a lock that nobody else holds while no stop is asked for. A rank that comes to
  // the call it has named before the others have named theirs waits there, for messages only, and for 5 s at most:
  // without a decision by then it goes on.
  //
  // SIGTERM: the first call takes it, where its disposition is the default one. It is then ignored, because a scheduler
  // may send it to every process of the job, unless ddprun has said that this worker is to end by it. A handler of the
  // program's own, or an ignored SIGTERM, is left as it is, also where it is set later.
  //
  // Threads: one for all groups of the process.
  // Rounds:  all groups of a process in one round count together. In a group of a later round, as run_elastic makes it,
  //          calls count from 1 again, and a stop that was not agreed on before is asked anew; in one of an earlier
  //          round it is false.
  //
  // Always false where ddprun did not start this very process (torchrun, mpirun, a plain start), in a forked child, and
  // where the stop comes to nothing because a worker fails meanwhile.
  [[nodiscard]] bool should_stop();

  // Gives up on the group, from any thread: collectives under way and later calls throw AbortedError on this rank,
  // and, as soon as they need this rank, RankFailure on the others.
  void abort(const std::string& reason);

  const std::shared_ptr<Impl>& impl() const { return impl_; }  // for the library itself: its own way inside

 private:
  std::shared_ptr<Impl> impl_;
};

// Of the communicators of the backend nccl, those of split() too; the same on all ranks. What is not set is NCCL's own
// choice, and a variable of NCCL's (NCCL_MAX_CTAS, ...) goes before. See docs/nccl.md.
struct NcclOptions {
  std::optional<int> min_ctas{};       // CUDA thread blocks that a collective takes at least; >= 1
  std::optional<int> max_ctas{};       // and at most; >= min_ctas. Fewer leave more of the GPU to computing
  std::optional<int> traffic_class{};  // of its network traffic; >= 0; needs NCCL 2.26.2
  std::string name{};                  // in NCCL's log and for profilers, from NCCL 2.27.3 on; empty: the group's
};

// Options of init_process_group().
struct InitOptions {
  // "cpu" (also where it is empty), "nccl", or "cpu:cpu,cuda:nccl" for a group of both: it takes host memory and device
  // memory, each call goes to the backend of its ranges' device, barrier() and allocate() to nccl, and when one of them
  // fails both end.
  std::string backend{};
  std::chrono::milliseconds timeout{600'000};  // of each collective, and of the meeting itself; > 0

  // Of the backend nccl: the GPU as the process sees it (CUDA_VISIBLE_DEVICES); without it, by LOCAL_RANK.
  std::optional<int> device{};
  bool share_device = false;  // two ranks of a host on one device are refused unless all say that they mean it
  NcclOptions nccl{};         // of the communicators of the backend nccl
};

// Meets the other ranks and returns the group of all of them.
//
// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT as ddprun and torchrun set them,
// and DDPRUN_ROUND_ID where ddprun set it. The store at MASTER_ADDR:MASTER_PORT is the launcher's where
// TORCHELASTIC_USE_AGENT_STORE is True, as they set it; else rank 0 serves it, on a thread of its own until the process
// ends. LOCAL_RANK and LOCAL_WORLD_SIZE may be missing. Without the first four it reads what Open MPI, MPICH, a step of
// Slurm or SageMaker says, and rank 0 serves the store too (docs/without_ddprun.md). Without these too the process is a
// group of its own: rank 0 of 1. Whoever waits for more than 3 s says on stderr for what.
//
// Throws InvalidArgument for variables that are missing or contradict each other, or an unknown backend; StoreError
// where the store can't be reached; TimeoutError, which names the missing ranks, at the deadline.
DDP_EXPORT ProcessGroup init_process_group(const InitOptions& options = {});

}  // namespace DDP_ABI
}  // namespace ddp
