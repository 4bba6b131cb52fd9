// One NCCL communicator, always a non-blocking one: its calls return at once, and what they began is waited out here.
//
// One lock for each communicator: no thread is inside an NCCL call on it while another aborts it, which is what makes
// an abort safe. The lock is held for single calls, never over a wait.
//
// NCCL's last call on a communicator (destroy, abort) may wait for the ranks of this host to make theirs, because its
// thread that serves them goes on until they have let go. So it has a thread of its own here, and who ends a
// communicator waits for it as long as they like (has_ended). Before 2.27 NCCL keeps what a call has begun in the
// thread that called: there a communicator that is in progress is aborted by that thread, which has to wait.
//
// Threads: any. Calls that begin something (enqueue, split, register) come from one thread at a time; abort() and
// state()
//          from any. After abort() every call answers that it is aborted.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/deadline.hpp"
#include "worker_runtime/backends/nccl/communicator_config.hpp"
#include "worker_runtime/backends/nccl/nccl_abi.hpp"
#include "worker_runtime/backends/nccl/nccl_library.hpp"

namespace ddp::nccl_backend {

constexpr std::chrono::seconds kNcclsPatience{2};  // for NCCL's last call on a communicator, which takes milliseconds

// How a call, or the wait for what it began, has ended.
struct Outcome {
  enum class Kind { done, failed, timed_out, aborted };
  Kind kind = Kind::done;
  abi::Result result = abi::Result::success;  // of `failed`
  std::string text{};                         // of `failed`: NCCL's own words
};

class Communicator {
 public:
  struct Rank {
    int size = 1;
    int rank = 0;
    abi::UniqueId id{};
    std::string name{};  // of the group
  };

  // The communicator is of use once settle() says done. All on the current device.
  static std::unique_ptr<Communicator> begin(const NcclLibrary& nccl, const Rank& rank,
                                             const CommunicatorConfig& config);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Waits until what was begun is no longer in progress. A cut of the deadline passes through as AbortedError; after
  // that, and after a time-out, the same thread is to call abort().
  Outcome settle(base::Deadline& deadline);

  // Runs `calls` on this communicator as one group; what is in progress after that is for settle(). After an error, one
  // of NCCL's checks of arguments too, the communicator is of no further use.
  Outcome enqueue(const std::function<abi::Result(abi::Comm)>& calls);

  // What NCCL found meanwhile: done where nothing is wrong, also while something is in progress, or a call is under
  // way.
  Outcome state();

  // Collective: the ranks of one color make up a communicator, in the order of their keys; null for kSplitNoColor.
  struct Split {
    Outcome outcome;
    std::unique_ptr<Communicator> made;
  };
  Split split(int color, int key, const std::string& name, base::Deadline& deadline);

  // Null where NCCL can't, or the memory is of a kind that it does not register.
  void* register_memory(void* memory, std::size_t bytes);
  void deregister(void* handle);

  // What runs on the device ends, and everything is freed (has_ended tells when). Once.
  void abort();
  bool is_aborted() const;
  void abort_where_only_this_thread_can();  // what it has begun, with an NCCL before 2.27

  // Gives it back in good order, which wants the others of this host to do so too at about this time. False where NCCL
  // could not by the deadline; then it is aborted, or NCCL is still at it.
  bool close(base::Deadline& deadline);

  // Whether NCCL has let go of it, and of what was registered with it, or does within `limit`.
  bool has_ended(std::chrono::milliseconds limit);

  const NcclLibrary& library() const { return nccl_; }

 private:
  Communicator(const NcclLibrary& nccl, abi::Comm comm, const CommunicatorConfig& config);

  Outcome outcome_of(abi::Result result) const;
  std::optional<Outcome> settled();
  bool keeps_calls_in_threads() const;
  void end(abi::CommAbort* last_call);

  const NcclLibrary& nccl_;
  CommunicatorConfig config_;
  int device_ = 0;
  std::shared_ptr<std::promise<void>> end_;  // NCCL's last call may outlive this
  std::shared_future<void> has_ended_;
  mutable std::mutex mutex_;
  abi::Comm comm_;  // guarded by mutex_, as are the next; null once it is aborted or given back
  std::optional<std::thread::id> settling_;  // who has begun something that is not known to be settled
  bool is_abort_wanted_ = false;             // of that thread, where it has to do it
  std::thread last_call_;
};

}  // namespace ddp::nccl_backend
