// Decides what the gradient engine does in a training step: which collectives to begin, in which order, and what the
// ranks are told of unused parameters and of steps that were given up.
//
// Pure: events go in, actions come out (the executor performs them in their order). No memory, no group, no clock, so
// tests play any history of any number of ranks.
//
// A *window* is the micro-batches from one synchronised step to the next: steps with Sync::off, then one with Sync::on.
// A parameter is missing if no step of the whole window used it. In a static graph, a step with Sync::on has a miscount
// if a parameter becomes ready more or less often than in the first one.
//
// The collectives of a window are, on every rank and whatever happens on that rank:
//   1. a BroadcastBuffers at the start of its last micro-batch, if the options say so
//   2. a Reduce of every bucket that is not idle (see below), in the order of their numbers, each once; before
//   each of them a FinishHooks, if gradients are released
//   3. a FinishHooks, if there is a communication hook
//   4. an AverageBuffers, if the options say so
//   5. one Agree: the flags
//   6. a Reduce of the buckets that were idle and are no more, and a FinishHooks if there is a hook, if the flags say
//   that all ranks agree on that
//   7. a FindFrozen, a FindUnused, a FindMiscounts or a FindNonFinite, if the flags looked at now have that fault, and
//   nobody cancelled
// Flags are the same on all ranks, because they come from an all-reduce. A rank that cancels runs through the same
// list: it gives the others what they wait for, and its flag tells them that the result is of no use.
//
// A bucket is idle if all ranks agreed, in an earlier window, that all of its parameters are frozen. The flags of every
// window tell whether all ranks have frozen the same parameters. A rank that has frozen others than were agreed on
// looks at these flags at once (Peek). If all ranks changed alike, all of them do, and the buckets that are needed
// again are reduced late. If not, nothing changes, and all ranks find the difference when they look at the flags.
//
// After its last stage a communication hook is told which parameters are frozen (TellUnused), and what it may have
// written to their gradients becomes zero (Zero), unless gradients are released. A rank that peeks tells the hook after
// the Peek; if ranks differ, it tells what all ranks agreed on last. So an optimizer that is a hook does the same on
// all ranks, also if its step comes before the ranks learn of the difference.
//
// A window that becomes part of a CUDA graph is the same in each launch. Its ranks tell each other nothing, so it has
// no Agree and nothing after it. begin_captured() refuses options by which ranks would tell each other something.
//
// With Unused::keep, a window leaves the gradient of a parameter that no rank used as it was before the window. A rank
// that did not use it can't know that before the flags are there: it takes a copy (Keep) before it writes zeros for the
// other ranks, and writes the copy back (Restore) if the flags say so. Gradients that every window begins with zeros
// need no copy.
//
// A rank that has no more inputs takes part in the windows of the others as a shadow: its gradients are zeros, and no
// parameter is missing. The flags then count the ranks that are active.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ddp/distributed_data_parallel.hpp"
#include "worker_runtime/engine/plan/readiness.hpp"

namespace ddp::gradient_engine {

// What a rank can find wrong with its own window. Of the faults of all ranks the greatest is told.
enum class Fault : std::int32_t { none, missing, miscount, non_finite };

// What ranks tell each other at the end of a window, each number the maximum over all ranks: the start of the bucket of
// the flags, as it lies in memory.
struct Flags {
  std::int32_t fault = 0;      // a Fault
  std::int32_t canceller = 0;  // 1 + a rank that gave up on the window; 0 for none
  std::int32_t frozen = 0;     // FrozenParameters::hash()
  std::int32_t frozen_complement = ~0;

  bool have_frozen_the_same() const { return frozen == ~frozen_complement; }  // the greatest is the least
};

// All that is in the bucket of the flags.
struct Agreement {
  Flags flags{};
  std::vector<std::int32_t> active{};  // if inputs may be uneven, by rank: 1 unless it is a shadow; else empty
  std::vector<std::uint8_t> used{};    // with Unused::keep, by parameter: 1 where a rank used it; else empty
};

// --- actions ---

struct FaultyWindow {  // that an error is about
  std::uint64_t number = 0;
  bool is_last = false;  // the one before that which is being ended
};

struct Drain {};           // wait for what was begun in earlier windows; its failure is thrown
struct BroadcastBuffers {  // wait for it
  int root = 0;
};
struct AverageBuffers {};  // begin to average them
struct ZeroAll {};         // write zeros to all gradients
struct Zero {              // write zeros to the gradient of one parameter
  std::size_t parameter = 0;
};
struct Keep {  // copy the gradient of one parameter, for a later Restore
  std::size_t parameter = 0;
};
struct Restore {  // write the last such copy back
  std::size_t parameter = 0;
};
struct Reduce {  // begin the all-reduce of a bucket
  std::size_t bucket = 0;
  std::uint64_t window = 0;  // its number: how many were ended before, good or not; the same on all ranks
};
struct Agree {  // all-reduce the flags
  Agreement own;
  bool is_read = true;  // wait for it, as for all that was begun before, and begin to read the result; else only begin
};
struct FinishHooks {};  // carry the communication hook through its stages, of all buckets; wait for it
struct Scale {          // multiply all gradients
  double factor = 1;
};
struct TellUnused {  // tell the communication hook whose gradients nobody uses; the last list of a window is complete
  std::vector<std::size_t> parameters;
};
struct Look {};      // take the oldest result that is not looked at, and tell it to the plan by looked()
struct Peek {};      // tell the newest result to the plan by peeked()
struct FindUnused {  // learn which ranks miss which parameters, in a collective, and throw it
  std::vector<std::size_t> missing;
  FaultyWindow window{};
};
struct FindMiscounts {  // learn which ranks have which miscounts, in a collective, and throw it
  std::optional<Miscount> own;
  FaultyWindow window{};
};
struct FindNonFinite {  // learn which gradients of which ranks are not finite, in a collective, and throw it
  std::vector<std::size_t> parameters;
  FaultyWindow window{};
};
struct FindFrozen {  // learn which ranks have frozen which parameters, in a collective, and throw it
  std::vector<bool> own;
  FaultyWindow window{};
};
struct TellCancelled {  // throw that the window was cancelled
  int rank = 0;
  FaultyWindow window{};
};

using Action =
    std::variant<Drain, BroadcastBuffers, AverageBuffers, ZeroAll, Zero, Keep, Restore, Reduce, FinishHooks, Scale,
                 TellUnused, Agree, Look, Peek, FindUnused, FindMiscounts, FindNonFinite, FindFrozen, TellCancelled>;
using Actions = std::vector<Action>;

// When the flags of a window are looked at. At the end of the next window, the host need not wait for a device.
enum class LookAt : std::uint8_t { end_of_window, end_of_next_window };

struct PlanOptions {
  int rank = 0;
  int rank_count = 1;
  bool zero_gradients = true;     // at the start of a window
  bool rebuilds_buckets = false;  // once, see is_rebuild_due()
  Unused unused = Unused::error;
  bool is_static_graph = false;
  UnevenInputs uneven_inputs = UnevenInputs::off;
  bool has_hook = false;                      // which reduces the buckets
  bool releases_gradients = false;            // when the hook is finished: one bucket is on its way at a time
  BufferSync buffer_sync = BufferSync::none;  // of the buffers that the model has; none if it has none
  LookAt look_at = LookAt::end_of_window;     // end_of_window with uneven inputs
};

// What is known of the windows that were looked at.
struct Outcome {
  bool was_last_good = true;         // the last one ended without a fault, and was not cancelled
  std::uint64_t good_windows = 0;    // so far
  int active_count = 0;              // ranks that were no shadows in the last good one; all of them before the first
  int lowest_active = 0;             // the lowest of them
  std::vector<std::uint8_t> used{};  // with Unused::keep, by parameter: by a rank, in the last good one
};

class Plan {
 public:
  // buckets: the parameters of each; together they hold each index below names.size() exactly once.
  Plan(std::vector<std::string> names, const std::vector<std::vector<std::size_t>>& buckets, PlanOptions options);

  // --- events ---
  // A call that throws changes nothing. `step` is what step() was after begin().

  // A micro-batch begins. Throws GradientError while another one is open, or where the window is being captured.
  Actions begin(Sync sync);

  // The same for a micro-batch that becomes part of a CUDA graph; all micro-batches of its window have to. Throws
  // InvalidArgument for options by which ranks tell each other something in each window, GradientError if something has
  // to be done before the capture.
  Actions begin_captured(Sync sync);

  // A window begins in which this rank is a shadow: end() follows. Throws GradientError within a window.
  Actions begin_shadow();

  // A gradient is complete; in a static graph, one use of it. Throws GradientError for a parameter that is ready
  // already or a step that is over, InvalidArgument for a bad index.
  Actions ready(std::uint64_t step, std::size_t parameter);

  // The gradient of a parameter was infinite or NaN when it became ready.
  void note_non_finite(std::size_t parameter);

  // The micro-batch ends, and with Sync::on the window. Throws GradientError for a step that is over, and for a window
  // that is being captured and leaves a parameter without a gradient.
  Actions end(std::uint64_t step);

  // The caller gives up on the micro-batch, and so on the window. Nothing for a step that is over.
  Actions cancel(std::uint64_t step);

  // What the ranks were not told yet, because the host did not wait for it. Throws GradientError within a window.
  Actions check();

  // The answer to Look. After the first window without a fault, a rebuild of the buckets is due if the options say so.
  Actions looked(const Agreement& of_all);

  // An action failed: the open step and its window are over, and nothing more is owed to the other ranks.
  void failed();

  // The answer to Peek.
  Actions peeked(const Agreement& of_all);

  // From the next window on, the parameter is frozen or not. A frozen one is not awaited and can't become ready, and
  // its gradient is zero. Throws GradientError within a window, InvalidArgument for a bad index.
  void set_frozen(std::size_t parameter, bool is_frozen);

  // From the next window on these are the buckets, and no rebuild is due any more. Throws GradientError within a
  // window.
  void rebuild(const std::vector<std::vector<std::size_t>>& buckets);

  // --- questions ---

  bool is_open() const { return is_open_; }
  std::uint64_t step() const { return step_; }  // number of the newest step
  Sync sync() const { return sync_; }           // of the newest step

  bool is_captured() const { return is_captured_; }  // the newest window

  // Whether the buckets are to be rebuilt before the next begin(). All ranks have the same answer there, because it
  // depends on flags that all have looked at.
  bool is_rebuild_due() const { return rebuild_ == Rebuild::due && is_between_windows(); }

  // All parameters, see Readiness.
  std::vector<std::size_t> ready_order() const { return readiness_.ready_order(); }

  bool is_between_windows() const { return !is_open_ && !window_begun_; }

  // The same on all ranks, where all have looked at the same windows.
  const Outcome& outcome() const { return outcome_; }

  // With Unused::keep: whether no rank used the parameter in the last window that was looked at. Else throws
  // InvalidArgument.
  bool is_unused(std::size_t parameter) const;

  // Throws GradientError within a window, that is, between the first begin() and the end() of its last step.
  void require_no_window(const char* call) const;

  // Throws InvalidArgument, which names this call of DistributedDataParallel, unless there is such a parameter.
  void check_index(std::size_t parameter, const char* call) const;

 private:
  enum class Rebuild : std::uint8_t { not_wanted, after_first_window, due };

  struct Findings {  // of this rank, in a window
    bool is_shadow = false;
    std::vector<std::size_t> missing{};
    std::optional<Miscount> miscount{};
    std::vector<std::size_t> non_finite{};
    std::vector<bool> frozen{};  // by parameter; empty if none ever was
    std::vector<bool> kept{};    // by parameter; empty if there was no Keep
    std::uint64_t window = 0;    // its number
  };

  Actions begin_any(Sync sync);
  void require_capturable() const;
  void require_complete_capture() const;
  void add_keep(Actions& actions, std::size_t parameter);
  void reduce_rest(Actions& actions, const std::optional<std::vector<bool>>& frozen);  // empty: to be told later
  void note_active(const std::vector<std::int32_t>& active);
  std::vector<bool> own_frozen() const;  // by parameter; empty if none ever was
  void tell_frozen(Actions& actions, const std::vector<bool>& frozen) const;
  std::vector<std::size_t> unused_by_all() const;
  Agreement own_agreement(const Findings& found) const;

  std::vector<std::string> names_;  // by parameter
  PlanOptions options_;
  Readiness readiness_;

  std::uint64_t step_ = 0;
  std::uint64_t windows_ = 0;  // that were ended, by end() or cancel()
  bool is_open_ = false;
  bool window_begun_ = false;
  Sync sync_ = Sync::on;
  Rebuild rebuild_;
  bool is_shadow_ = false;
  bool is_captured_ = false;  // this window
  Outcome outcome_;

  std::vector<std::size_t> non_finite_;  // of this window
  std::vector<bool> kept_;               // of this window, see Findings
  std::vector<Findings> unlooked_;       // of the windows whose result is not looked at, the oldest first
};

}  // namespace ddp::gradient_engine
