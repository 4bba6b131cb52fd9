// Saves the whole state of a training run while training goes on, and finds the newest valid state when it starts.
//
//   ddp::CheckpointerOptions options;
//   options.directory = "checkpoints";
//   ddp::Checkpointer checkpoints(world, options);
//   checkpoints.add(parameters);                          // the same on all ranks
//   checkpoints.add("step", step);
//   checkpoints.add("sampler", cursor);                   // a SamplerCursor: also for another number of ranks
//   checkpoints.add(optimizer);                           // a ShardedOptimizer: each rank saves its part
//   checkpoints.add(model);                               // the layout of its buckets
//   checkpoints.add_own("random", generator);             // of each rank: a generator of <random>
//   checkpoints.add_own([hook] { return hook->state(); });
//   if (auto loaded = checkpoints.load()) ...             // everything is as it was when that checkpoint was saved
//   for (...) {
//     train_one_step();
//     if (step % 100 == 0) checkpoints.save(step);        // copies the state to memory; a thread writes it
//   }
//   checkpoints.wait();                                   // the last one is on disk, or this throws
//
// What a rank copies in save() is its own state, and an equal share of the state that all ranks have alike. If a run
// is loaded by as many ranks as saved it, training goes on with the same bits. Another number of ranks may load it,
// too: the state of all ranks and that of a ShardedOptimizer is laid out anew; the own state of each rank is left as it
// is, and LoadedCheckpoint::has_own_state says so.
//
// A checkpoint is named by the round of the group and by the step, and nothing is ever overwritten. The newest is that
// of the highest round, then of the highest step. It counts once all of it is on disk: whatever stops a run half-way,
// the checkpoint before is still there. The format: docs/checkpoints.md.
//
// Threads: one at a time. The thread that writes has a group of its own. A Checkpointer that was moved from may only be
//          destroyed or assigned to.
// Group:   it takes host memory: of the backend cpu, or cpu:cpu,cuda:nccl. Tensors may be on its GPU.
// Errors:  an error of writing on any rank is thrown on all ranks, by the next save() or wait(). Training may go on
//          after a CheckpointError: that checkpoint is missing, earlier ones stay.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <locale>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.hpp"
#include "ddp/elastic.hpp"
#include "ddp/error.hpp"
#include "ddp/export.hpp"
#include "ddp/memory.hpp"
#include "ddp/parameter.hpp"
#include "ddp/process_group.hpp"
#include "ddp/round.hpp"
#include "ddp/sampler_cursor.hpp"
#include "ddp/sharded_optimizer.hpp"

namespace ddp {
inline namespace DDP_ABI {

namespace detail {
template <class T, class = void>
struct HasDataType : std::false_type {};
template <class T>
struct HasDataType<T, decltype(void(DataTypeOf<T>::value))> : std::true_type {};
}  // namespace detail

// Keeps the newest checkpoint in the memory of this process, and a copy of another rank's part: of a rank on another
// host, unless one host has more than half of the ranks. So a group of which one rank, or one host, is gone needs no
// disk; load() then gives the copies to the ranks of the new group, before it returns. One object for a process; it
// outlives the groups, as ElasticState does:
//
//   ddp::CheckpointMemory memory;
//   ddp::run_elastic(state, [&](ddp::ProcessGroup world) {
//     ddp::CheckpointerOptions options;
//     options.memory = &memory;
//     ddp::Checkpointer checkpoints(world, options);
//     ...
//
// Memory:  four times this rank's part: the newest two checkpoints, each with another rank's part.
// Threads: that of its Checkpointer.
class DDP_EXPORT CheckpointMemory {
 public:
  class Impl;

  CheckpointMemory();  // without a checkpoint
  ~CheckpointMemory();
  CheckpointMemory(const CheckpointMemory&) = delete;
  CheckpointMemory& operator=(const CheckpointMemory&) = delete;

  const std::shared_ptr<Impl>& impl() const { return impl_; }  // for the library itself

 private:
  std::shared_ptr<Impl> impl_;
};

// How the files of a checkpoint are laid out.
enum class CheckpointForm : std::uint8_t {
  parts,   // each rank writes its part, into a folder for each checkpoint. On a disk that all ranks reach, or on one of
           // each host
  single,  // rank 0 writes all into one safetensors file. It takes the memory of the whole state on rank 0
};

// Options of a Checkpointer, the same on all ranks. One of `directory` and `memory` is needed.
struct CheckpointerOptions {
  std::filesystem::path directory{};            // empty: nothing is written; with `memory` only
  CheckpointForm form = CheckpointForm::parts;  // of new checkpoints; load() reads both
  std::size_t keep = 2;                         // complete checkpoints that stay; >= 1
  CheckpointMemory* memory = nullptr;           // null: no copies in memory. On all ranks or on none
  // Told on rank 0 which checkpoint load() passes over, and why. Empty: a line on stderr. What it throws is dropped.
  std::function<void(const std::string& message)> warn{};
  std::chrono::milliseconds write_timeout{600'000};  // how long save(), wait() and other ranks wait for a disk; > 0
};

// Which checkpoint load() found.
struct LoadedCheckpoint {
  RoundId round;                // of the group that saved it
  std::uint64_t step = 0;       // what save() was given
  int rank_count = 1;           // of the run that saved it; 0 for a file of another program
  bool has_own_state = true;    // add_own(): as many ranks saved it, so each rank has its own state again
  bool is_from_memory = false;  // from a CheckpointMemory, not from disk
};

// Saves and loads what was added to it; the example is at the top of this file.
//
// The memory of what is added stays the caller's and at its place for the life of this object. All ranks add the same,
// in the same order. Names are unique: those of the state of all ranks, and those of add_own(). add() and add_own()
// throw InvalidArgument for a shape that does not fit the values.
class DDP_EXPORT Checkpointer {
 public:
  // Collective. Throws InvalidArgument for options out of range.
  Checkpointer(ProcessGroup group, CheckpointerOptions options);
  // Waits for the save under way. Prints an error that no call has thrown. If the group has failed, or was aborted, the
  // save is given up instead.
  ~Checkpointer();
  Checkpointer(Checkpointer&& other) noexcept;
  Checkpointer& operator=(Checkpointer&& other) noexcept;

  // A tensor, or tensors, with the same values on all ranks.
  void add(Parameter tensor);
  void add(const std::vector<Parameter>& tensors) {
    for (const Parameter& each : tensors) add(each);
  }

  // A number, an enumerator, or an array of them. What has no DataType is saved as bytes.
  template <class T, std::enable_if_t<detail::IsPlain<T>::value, int> = 0>
  void add(const std::string& name, T& value) {
    if constexpr (detail::HasDataType<T>::value) {
      add({name, {}, MemoryRange(&value, 1)});
    } else {
      add({name, {static_cast<std::int64_t>(sizeof value)}, MemoryRange(&value, sizeof value, DataType::uint8)});
    }
  }

  // A text of any length, such as the state of an object.
  struct Text {
    std::function<std::string()> give;                  // what save() saves
    std::function<void(const std::string& text)> take;  // gets what load() loads. If it throws, load() throws on all
                                                        // ranks
  };
  // A text that is the same on all ranks.
  void add_text(std::string name, Text text);

  // The position of a sampler, which is the same on all ranks. load() throws CheckpointError for a text that is none.
  template <class Sampler>
  void add(std::string name, SamplerCursor<Sampler>& cursor) {
    add_text(std::move(name), {[&cursor] { return to_string(cursor.state()); },
                               [&cursor](const std::string& text) {
                                 const auto position = parse_sampler_position(text);
                                 if (!position) throw CheckpointError("a position of a sampler is " + text);
                                 cursor.restore(*position);
                               }});
  }

  // Its parts, wherever they lie when save() or load() is called: the model has to be made by then. Copies share their
  // state, so this object keeps one. name: what the names of its tensors begin with; another for each optimizer.
  void add(ShardedOptimizer optimizer, std::string name = "optimizer");

  // The order and the caps of its buckets, once they were rebuilt. After load(), the next begin_step() or
  // rebuild_buckets() lays them out so again, whatever the caps of the options are; no caps are tried any more. So
  // gradients have new addresses. A checkpoint without this text is loaded, too: the buckets stay as they are then.
  // Throws CheckpointError in load() if the model has another number of parameters, or the text is damaged.
  // This object holds the model too: its hook is free for another model, and its gradients are freed, when both this
  // object and the caller's model are destroyed. name: another one for each model.
  void add(DistributedDataParallel model, std::string name = "buckets");

  // Of each rank for itself, such as hook->state(): called by save() and load(). The same names on all ranks.
  void add_own(std::function<std::vector<Parameter>()> tensors);
  // A text of each rank for itself. The same names on all ranks.
  void add_own_text(std::string name, Text text);

  // The state of a random number generator of <random>, or of another class with << and >>.
  template <class Generator, class = decltype(std::declval<std::ostream&>() << std::declval<const Generator&>()),
            class = decltype(std::declval<std::istream&>() >> std::declval<Generator&>())>
  void add_own(std::string name, Generator& generator) {
    add_own_text(std::move(name), {[&generator] {
                                     std::ostringstream out;
                                     out.imbue(std::locale::classic());
                                     out << generator;
                                     return out.str();
                                   },
                                   [&generator](const std::string& text) {
                                     std::istringstream in(text);
                                     in.imbue(std::locale::classic());
                                     if (!(in >> generator)) throw CheckpointError("a generator's state is " + text);
                                   }});
  }

  // Copies the state, and returns while it is being written. Every rank calls it at the same step. Waits for the
  // checkpoint before, and throws what that failed with; then nothing is copied. What fails in the copy, such as a name
  // that is used twice, is an error of writing.
  void save(std::uint64_t step);

  // Waits until the last checkpoint is complete on all ranks. Throws CheckpointError if it is not, TimeoutError after
  // write_timeout, and what the group fails with.
  void wait();

  // Collective. Fills all memory and calls all Text::take with the newest checkpoint that is complete and valid, in
  // memory or on disk; the same on all ranks. Empty if there is none. A checkpoint of which a part is missing or torn
  // is passed over with a warning that names it. Files may be on disks of their own on each host: each part is read by
  // a rank that has it, and sent to the others.
  // What was added has to be in the checkpoint; what the checkpoint has beyond that is left out.
  // Throws CheckpointError, on all ranks, if all complete checkpoints are broken, or if the newest valid one lacks a
  // tensor that was added, or has it in another type or shape; nothing is changed then. If reading fails in the middle,
  // the memory is undefined.
  std::optional<LoadedCheckpoint> load();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace DDP_ABI
}  // namespace ddp
