// Training that goes on in the same processes when a worker, a node or a network fails.
//
//   ddp::ElasticState state;
//   for (auto& parameter : model.parameters()) state.add(parameter);   // host or GPU memory
//   state.add(step);                                                   // numbers and arrays; a struct: add_struct()
//   ddp::run_elastic(state, [&](ddp::ProcessGroup world) {             // called anew in every round
//     ddp::DistributedDataParallel ddp_model(world, parameters);
//     while (step < steps) {
//       train_one_step(ddp_model, ...);
//       ++step;
//       state.commit();                                                // what a failure goes back to
//     }
//   });
//
// The words are those of Horovod's elastic state:
//   commit   keeps a copy of the state in this process's memory. A failure loses what was done since the last
//            commit, on all ranks; so commit as often as a copy is cheap, and at the same steps on all ranks.
//   restore  goes back to the last commit.
//   sync     makes all ranks equal: they take the state from the rank that has the newest commit. On GPUs they take it
//            from the rank of the last round that is least far, because an aborted collective may have given a wrong
//            result to another rank. run_elastic calls sync before `train`, so a replacement, which begins with
//            nothing, has the others' state.
//
// When a rank fails anywhere in the job, or members come or go, ddprun ends the round: every rank leaves the collective
// it is in, or the next one that it calls, by an exception (RankFailure, TimeoutError, RoundOver) within milliseconds.
// run_elastic catches it, lets go of the group, waits for its part in the next round, restores, makes the next group
// over fresh memory, syncs, and calls `train` again: same process, same memory, perhaps another rank and size. Workers
// that died are started anew beside those that live on.
//
// What `train` is to keep to:
//   - It lets the exceptions of its group pass, and everything that holds the group (the ProcessGroup, a
//     DistributedDataParallel, RegisteredMemory, Work) lives inside it and ends with it.
//   - Whatever changes from step to step is in the state, or follows from it: the step, the optimizer's memory, the
//     generator's seed. What depends on rank and size, such as a DistributedSampler, is made in `train`.
//   - rank() and size() are asked of the group: the environment's RANK and WORLD_SIZE are those of the first round.
//   - It returns on every rank when the work is done. Ranks wait for each other at the end; where one fails before all
//     have come there, `train` is called once more, to find that nothing is left to do.
//
// Restarts count against --max-restarts as ever; when none is left, all workers are stopped.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "ddp/export.hpp"
#include "ddp/memory.hpp"
#include "ddp/process_group.hpp"

namespace ddp {
inline namespace DDP_ABI {

namespace detail {

// Numbers and arrays of them: their bytes mean the same in another process.
template <class T>
struct IsPlain : std::integral_constant<bool, !std::is_const<T>::value &&
                                                  (std::is_arithmetic<T>::value || std::is_enum<T>::value)> {};
template <class T, std::size_t kCount>
struct IsPlain<T[kCount]> : IsPlain<T> {};
template <class T, std::size_t kCount>
struct IsPlain<std::array<T, kCount>> : IsPlain<T> {};

template <class T, bool = HasData<T>::value && !IsPlain<T>::value>
struct HasPlainContents : std::false_type {};
template <class T>
struct HasPlainContents<T, true> : IsPlain<typename HasData<T>::Element> {};

}  // namespace detail

// State whose size changes, or that has no fixed place in memory: the program makes the copies and sends them itself.
// ElasticState decides when.
//
// Memory: two copies in turns, so that a commit or a transfer that fails leaves the one before whole.
// Threads: those of ElasticState.
class DDP_EXPORT ElasticContents {
 public:
  virtual ~ElasticContents();

  // Makes a copy. It is the newest one when commit() returns.
  virtual void commit() = 0;

  // Goes back to the newest copy. There is one.
  virtual void restore() = 0;

  // Collective: all ranks get the newest copy of rank `source`, or what its memory holds if it has none, and keep that
  // aside.
  virtual void fetch(ProcessGroup& group, int source) = 0;

  // All ranks have it: what fetch() got is the newest copy now, and the state.
  virtual void adopt() = 0;
};

// What a rank must have to go on where another one was. The same entries, in the same order and sizes, on all ranks.
//
// Memory: three times the state: the user's own, and two copies in turns, so that a commit that fails half-way
//         leaves the one before whole. An entry may be in the memory of a GPU; its copies are in host memory.
// Threads: one at a time.
class DDP_EXPORT ElasticState {
 public:
  ElasticState();  // without entries
  ~ElasticState();
  ElasticState(ElasticState&& other) noexcept;
  ElasticState& operator=(ElasticState&& other) noexcept;

  // The memory stays the caller's and at its place for the life of this object. Throws InvalidArgument after the first
  // commit or sync. Memory of a GPU needs a sync() with a group on that device before the first commit; run_elastic
  // does it.
  void add(MemoryRange values);

  // A number, an enumerator, or an array of them.
  template <class T, std::enable_if_t<detail::IsPlain<T>::value, int> = 0>
  void add(T& value) {
    add_bytes(&value, sizeof value);
  }

  // What a vector of numbers holds, or what a span of them shows: its contents, of this length from now on.
  template <class T, std::enable_if_t<detail::HasPlainContents<T>::value, int> = 0>
  void add(T& values) {
    add_bytes(values.data(), values.size() * sizeof *values.data());
  }

  // Anything else may have pointers in it, which mean nothing in another process. See add_struct().
  template <class T, std::enable_if_t<!detail::IsPlain<T>::value && !detail::HasPlainContents<T>::value, int> = 0>
  void add(T& value) = delete;

  // The bytes of a struct that holds numbers only: no pointer, reference, span or handle. Only the caller can know.
  template <class T>
  void add_struct(T& value) {
    static_assert(std::is_class<T>::value && std::is_trivially_copyable<T>::value && !std::is_const<T>::value,
                  "a struct is added by its bytes: it has to be trivially copyable");
    static_assert(!detail::HasData<T>::value, "a span or view holds a pointer: add() takes what it shows");
    add_bytes(&value, sizeof value);
  }

  // Beside the entries, on all ranks or on none; at most one. Throws as add().
  void set_contents(std::shared_ptr<ElasticContents> contents);

  // Keeps a copy; of a GPU's memory behind the work of the default stream: other streams are the caller's to wait for.
  // Numbered by the round of the last sync and a count, and so ordered over all ranks of the job.
  void commit();

  // Makes the user's memory what it was at the last commit; does nothing before the first.
  void restore();

  // Collective: every rank takes the state of the newest commit: of the highest round, then the highest count, then the
  // lowest rank. Where no rank has one, all take what rank 0's memory holds. This rank's memory, and its last commit,
  // are changed only once all has come; a failure before leaves both alone. Throws MismatchError where the ranks'
  // entries differ in number or size, InvalidArgument where one is on a device that is not the group's, and as
  // collectives do.
  void sync(ProcessGroup& group);

  // How many commits made the state, over all rounds and whichever ranks made them; 0 before the first.
  std::uint64_t commits() const;

 private:
  class Impl;
  void add_bytes(void* data, std::size_t bytes);

  std::unique_ptr<Impl> impl_;
};

// Options of run_elastic().
struct ElasticOptions {
  InitOptions group{};  // of the group of each round
  // Longest wait for a part in the next round. It is longer than ddprun's join_timeout.
  std::chrono::milliseconds seat_timeout{900'000};
};

// Runs `train` in one round after another until it has returned on all ranks; an example is at the top of this file.
//
// It takes part in new rounds where ddprun started this very process. Where nobody did (torchrun, mpirun, a plain
// start), or the version of ddprun is another, it syncs and runs `train` once, and lets every error through.
//
// Throws what `train` throws that is no failure of its group: a MismatchError, a GradientError, the user's own
// exceptions; TimeoutError where there is no seat in time; AbortedError where the job ends instead, mostly shortly
// before ddprun's SIGTERM. One call at a time in a process.
DDP_EXPORT void run_elastic(ElasticState& state, const std::function<void(ProcessGroup world)>& train,
                            const ElasticOptions& options = {});

}  // namespace DDP_ABI
}  // namespace ddp
