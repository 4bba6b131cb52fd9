// What a process group asks of a backend (`cpu`, `nccl`).
//
// Nothing above this interface follows a data pointer or assumes host memory: it hands over ranges of memory on a
// device and gets back work that completes in the order of the calls (on a GPU: in a stream's order).
//
// Arguments reach a backend checked (ranges, sizes, root, timeout; see checks.hpp); what only all ranks together can
// know, such as another rank calling something else, is the backend's to find. What a backend does not have it refuses
// by InvalidArgument, on every rank alike.
//
// Threads: as ProcessGroup: one caller at a time; abort() from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddp/memory.hpp"
#include "ddp/process_group.hpp"
#include "worker_runtime/process_group/device_arithmetic.hpp"
#include "worker_runtime/process_group/device_memory.hpp"
#include "worker_runtime/process_group/part_counts.hpp"

namespace ddp {

// One collective in flight.
class Work::State {
 public:
  virtual ~State() = default;
  using Callback = std::function<void(std::exception_ptr)>;

  virtual void wait() = 0;  // as Work::wait
  virtual bool is_completed() const = 0;
  virtual std::optional<std::chrono::nanoseconds> duration() const = 0;  // as Work::duration

  // As Work::wait_for: false where it has not completed by `end`.
  virtual bool wait_until(std::chrono::steady_clock::time_point end) = 0;

  // As Work::on_completed. The callback is not empty.
  virtual void on_completed(Callback callback) = 0;

  // Hands the error over, null for none. A callback that throws ends the process.
  static void call(const Callback& callback, const std::exception_ptr& error) noexcept { callback(error); }
};

}  // namespace ddp

namespace ddp::process_group {

enum class CollectiveKind : std::uint8_t {
  barrier,
  all_reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  allocate,
  reduce,
  gather,
  scatter,
  all_to_all,
  send,
  receive,
  all_gather_v,
  reduce_scatter_v,
  all_to_all_v,
};

// What its user called, where a collective is a part of that.
enum class Within : std::uint8_t {
  nothing,
  split,
  new_group,
  making_a_group,
  model_check,
  unused_check,
  state_sync,
  checkpoint,
  all_gather_v,
  reduce_scatter_v,
  all_to_all_v,
};

const char* name_of(CollectiveKind kind);  // "all_reduce"
const char* name_of(Within within);        // "split"; empty for nothing
const char* name_of(ReduceOp op);          // "sum"
bool has_op(CollectiveKind kind);          // whether Collective::op means something
bool has_root(CollectiveKind kind);        // and Collective::root

constexpr int kAnyRank = -1;

// Both ranges are on the device of the call, also where they are empty.
struct Collective {
  CollectiveKind kind = CollectiveKind::barrier;
  ConstMemoryRange input{};  // the same memory as `output` where the collective works in place; empty where it has none
  MemoryRange output{};      // empty where it has none: on ranks that are not root, of a send, of a barrier
  ReduceOp op = ReduceOp::sum;
  int root = 0;                         // the peer of a send or receive; kAnyRank where it has a source
  int tag = 0;                          // of a send or receive; >= 0
  int* source = nullptr;                // of a receive from any rank: where it says which
  double factor = 1;                    // of a premul_sum
  std::chrono::milliseconds timeout{};  // from the call to completion; > 0
  void* stream = nullptr;               // see CollectiveOptions
  bool is_monitored = false;            // a barrier; see ProcessGroup::monitored_barrier
  Within within = Within::nothing;
  CallCounts counts{};  // of an all_gather_v and its like
};

// Who gives up on a group.
enum class AbortCause : std::uint8_t {
  program,     // by ProcessGroup::abort: calls throw AbortedError
  round_over,  // the launcher, for all ranks: calls throw RoundOver
};

// Who this process is, as the launcher told it (environment.hpp) and the ranks agreed on.
struct GroupMember {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  RoundId round;
  std::string name{};  // of the group, the same on all its ranks, and no other's in the round: "group_0", "group_0/1"
  bool is_of_launcher = true;  // its round is the launcher's, whose agent hears of failures in it
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual Device device() const = 0;

  // Whether ranges on this device are its own: device(), and in a group of two backends also the host's memory.
  virtual bool reaches(const Device& other) const { return other == device(); }

  // Whether it takes this range: one of a device that it reaches, and, in a group that has a GPU, not one that says
  // host memory and is the GPU's. It is asked with each call.
  virtual bool takes(const ConstMemoryRange& range) const { return range.device == device(); }

  // The device whose memory this is, where that is found out: in a group that has a GPU, for memory of GPUs.
  virtual std::optional<Device> owner_of(const void* memory) const {
    static_cast<void>(memory);
    return std::nullopt;
  }

  // Enqueues behind all earlier calls. Throws AbortedError where the group is of no further use. More than one are
  // begun as one (see ProcessGroup::coalesce), all with the same timeout; none is no call.
  virtual std::shared_ptr<Work::State> submit(std::span<const Collective> collectives) = 0;

  // submit() and wait() in one, for a caller that has nothing to do meanwhile.
  virtual void run(const Collective& collective) = 0;

  // As ProcessGroup::allocate.
  virtual RegisteredMemory allocate(std::size_t bytes, std::chrono::milliseconds timeout) = 0;

  // Collective over all ranks of this group. `ranks` are those of this group that the new one has, by their rank there;
  // for one that is in no new group they are empty, and null comes back. Different ranks may name different lists, each
  // rank that in which it is: no two of these overlap.
  virtual std::unique_ptr<Backend> split(const GroupMember& of_new, const std::vector<int>& ranks,
                                         std::chrono::milliseconds timeout) = 0;

  // Of device().
  virtual std::shared_ptr<DeviceMemory> device_memory() = 0;
  virtual std::shared_ptr<DeviceArithmetic> device_arithmetic() = 0;

  // As ProcessGroup::abort, from any thread. Later calls, and those under way, say the first reason only.
  virtual void abort(const std::string& reason, AbortCause cause) = 0;

  // From now on `tell` hears, once at most and from whatever thread, why the group is of no further use where the
  // backend found that itself (not by abort(), not by its own end). It is called without a lock that calls of the
  // backend take, may abort another backend, and has returned, or will not be called, when set_failure_listener({}) or
  // the backend's end has returned. A group that has failed already tells at once. A group of two backends ends both by
  // it.
  using FailureListener = std::function<void(const std::string& reason)>;
  virtual void set_failure_listener(FailureListener tell) = 0;
};

}  // namespace ddp::process_group
