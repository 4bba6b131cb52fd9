// What a process group asks of a backend (`cpu` today, `nccl` later).
//
// Nothing above this interface follows a data pointer or assumes host memory: it hands over ranges of memory on a
// device and gets back work that completes in the order of the calls (on a GPU: in a stream's order).
//
// Arguments reach a backend checked (ranges, sizes, root, timeout); what only all ranks together can know, such as
// another rank calling something else, is the backend's to find.
//
// Threads: as ProcessGroup: one caller at a time; abort() from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "ddp/memory.hpp"
#include "ddp/process_group.hpp"

namespace ddp {

// One collective in flight.
class Work::State {
 public:
  virtual ~State() = default;
  virtual void wait() = 0;  // as Work::wait
  virtual bool is_completed() const = 0;
};

}  // namespace ddp

namespace ddp::process_group {

enum class CollectiveKind : std::uint8_t { barrier, all_reduce, broadcast, all_gather, reduce_scatter, allocate };

const char* name_of(CollectiveKind kind);  // "all_reduce"

struct Collective {
  CollectiveKind kind = CollectiveKind::barrier;
  ConstMemoryRange input{};  // the same memory as `output` where the collective works in place
  MemoryRange output{};
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::chrono::milliseconds timeout{};  // from the call to completion; > 0
  void* stream = nullptr;               // see CollectiveOptions
};

// Who gives up on a group.
enum class AbortCause : std::uint8_t {
  program,     // by ProcessGroup::abort: calls throw AbortedError
  round_over,  // the launcher, for all ranks: calls throw RoundOver
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual Device device() const = 0;

  // Enqueues behind all earlier calls. Throws AbortedError where the group is of no further use.
  virtual std::shared_ptr<Work::State> submit(const Collective& collective) = 0;

  // submit() and wait() in one, for a caller that has nothing to do meanwhile.
  virtual void run(const Collective& collective) = 0;

  // As ProcessGroup::allocate.
  virtual RegisteredMemory allocate(std::size_t bytes, std::chrono::milliseconds timeout) = 0;

  // As ProcessGroup::abort, from any thread.
  virtual void abort(const std::string& reason, AbortCause cause) = 0;
};

// Who this process is, as the launcher told it (environment.hpp) and the ranks agreed on.
struct Membership {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  RoundId round;
};

}  // namespace ddp::process_group
