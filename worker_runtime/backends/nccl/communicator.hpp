// One NCCL communicator, which blocks: a call returns when its work is on the stream. That takes microseconds, except
// for the first call of a kind, which connects the ranks and waits for them. abort() from another thread ends that
// wait.
//
// make() sets up a communicator that does not block, because a blocking init cannot be ended, and splits this one off
// it. On a communicator that does not block, NCCL 2.28 starts a thread for each call: 70 µs instead of 8.
//
// NCCL's last call on a communicator (destroy, abort) may wait for the ranks of this host to make theirs, because its
// thread that serves them goes on until they have let go. So it has a thread of its own here, and who ends a
// communicator waits for it as long as they like (has_ended).
//
// Threads: any. Calls that begin something (enqueue, split, register) come from one thread at a time; abort() and
// state()
//          from any. After abort() every call answers that it is aborted.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "base/deadline.hpp"
#include "worker_runtime/backends/nccl/call_gate.hpp"
#include "worker_runtime/backends/nccl/communicator_config.hpp"
#include "worker_runtime/backends/nccl/nccl_abi.hpp"
#include "worker_runtime/backends/nccl/nccl_library.hpp"

namespace ddp::nccl_backend {

constexpr std::chrono::seconds kNcclsPatience{2};  // for NCCL's last call on a communicator, which takes milliseconds

// How a call has ended.
struct Outcome {
  enum class Kind { done, failed, timed_out, aborted };
  Kind kind = Kind::done;
  abi::Result result = abi::Result::success;  // of `failed`
  std::string text{};                         // of `failed`: NCCL's own words
};

Outcome outcome_of(const NcclLibrary& nccl, abi::Result result);  // done for what is in progress, too

class Communicator {
 public:
  struct Rank {
    int size = 1;
    int rank = 0;
    abi::UniqueId id{};
    std::string name{};  // of the group
  };

  struct Made {
    Outcome outcome;
    std::unique_ptr<Communicator> communicator;  // null unless done
  };

  // Collective, on the current device. Throws Error where NCCL refuses the arguments, AbortedError where the deadline
  // is cut.
  static Made make(const NcclLibrary& nccl, const Rank& rank, const CommunicatorConfig& config,
                   base::Deadline& deadline);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Runs `calls` on this communicator as one group. After an error, also after NCCL has refused an argument, the
  // communicator is of no further use.
  Outcome enqueue(const std::function<abi::Result(abi::Comm)>& calls);

  // What NCCL found meanwhile: done where nothing is wrong, also while a call is under way.
  Outcome state();

  // Collective: the ranks of one color make up a communicator, in the order of their keys; null for kSplitNoColor.
  // After any other outcome than done this one is of no further use.
  Made split(int color, int key, const std::string& name, base::Deadline& deadline);

  // Null where NCCL can't, or the memory is of a kind that it does not register.
  void* register_memory(void* memory, std::size_t bytes);
  void deregister(void* handle);

  // What runs on the device ends, and everything is freed (has_ended tells when). Once.
  void abort();
  bool is_aborted() const { return gate_->is_taken(); }

  // Gives it back in good order, which wants the others of this host to do so too at about this time. False where NCCL
  // could not by the deadline; then it is aborted, or NCCL is still at it.
  bool close(base::Deadline& deadline);

  // Whether NCCL has let go of it, and of what was registered with it, or does within `limit`.
  bool has_ended(std::chrono::milliseconds limit);

  const NcclLibrary& library() const { return nccl_; }

 private:
  Communicator(const NcclLibrary& nccl, abi::Comm comm, const CommunicatorConfig& config);

  std::optional<Outcome> call_until(base::Deadline& deadline, std::function<abi::Result(abi::Comm)> call,
                                    std::function<void()> if_late);
  void end(abi::Comm comm, abi::CommAbort* last_call);

  const NcclLibrary& nccl_;
  CommunicatorConfig config_;
  int device_ = 0;
  std::shared_ptr<CallGate> gate_;  // a call that NCCL keeps outlives this
  std::promise<std::shared_future<void>> ending_;
  std::shared_future<std::shared_future<void>> last_call_ = ending_.get_future().share();  // begun; come back
  std::shared_future<void> has_setup_ended_;  // valid for one that make() made
};

}  // namespace ddp::nccl_backend
