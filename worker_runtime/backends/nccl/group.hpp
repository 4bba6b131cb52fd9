// A group's communicator, its stream, and what is under way on it.
//
// A call is put on the group's own stream, between two events: the first stands behind what the caller's stream holds,
// the caller's stream waits for the second; the host goes on. The watching thread looks at both events, at deadlines,
// and at what NCCL found. A thread of the group's own, which sleeps otherwise, deals with its failure: it tells the
// other ranks, aborts the communicator, hears how far all came, and makes the error of that (core/failure/judge.hpp).
//
// Threads: begin(), allocate() and split() from one at a time; fail() and what Operation asks from any.
// Fork:    a forked child leaks it.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/io/cut.hpp"
#include "rendezvous/io/fork_guard.hpp"
#include "worker_runtime/backends/nccl/communicator.hpp"
#include "worker_runtime/backends/nccl/cuda.hpp"
#include "worker_runtime/backends/nccl/device_clock.hpp"
#include "worker_runtime/backends/nccl/failure_board.hpp"
#include "worker_runtime/backends/nccl/launch.hpp"
#include "worker_runtime/backends/nccl/operation.hpp"
#include "worker_runtime/backends/nccl/watch.hpp"
#include "worker_runtime/core/failure/failed_group.hpp"
#include "worker_runtime/core/operation/group_status.hpp"
#include "worker_runtime/flight_recorder/group_log.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::nccl_backend {

using core::Cause;
using core::FailedGroup;
using core::Failure;
using core::GroupStatus;
using core::Verdict;

// What a group is made of.
struct GroupParts {
  process_group::Membership who{};
  int device = 0;                                // current when the group is made
  std::unique_ptr<Communicator> communicator{};  // settled
  std::optional<FailureBoard::Place> board{};    // none: there is nobody to tell
  std::vector<int> job_ranks{};                  // of the whole job, by rank here
};

class Group : public Watched, public std::enable_shared_from_this<Group> {
 public:
  static std::shared_ptr<Group> make(GroupParts parts);

  // Ends it: waits a little for what is under way, aborts it where that takes longer, and gives the communicator back.
  // No call may come after it.
  void close();

  int device() const { return device_; }
  const process_group::Membership& who() const { return who_; }
  std::shared_ptr<GroupStatus> status() const { return status_; }
  void require_own_process() const { fork_guard_.require_own_process(); }
  bool in_forked_child() const { return fork_guard_.in_forked_child(); }

  std::shared_ptr<Operation> begin(std::span<const process_group::Collective> calls);
  void wait(Operation& operation);
  void wait_on_host(Operation& operation);
  bool wait_until(Operation& operation, std::chrono::steady_clock::time_point end);
  bool is_over(const Operation& operation) const;
  void on_completed(Operation& operation, Work::State::Callback callback);

  RegisteredMemory allocate(std::size_t bytes, std::chrono::milliseconds timeout);

  // As process_group::Backend::split; null for one that is in no new group.
  std::shared_ptr<Group> split(const process_group::Membership& of_new, const std::vector<int>& ranks,
                               std::chrono::milliseconds timeout);

  void abort(const std::string& reason, process_group::AbortCause cause);
  void set_failure_listener(process_group::Backend::FailureListener tell);

  Look look(std::chrono::steady_clock::time_point now) override;

 private:
  explicit Group(GroupParts parts);
  void start();
  void leave();

  // The last call, for messages.
  struct Called {
    std::uint64_t number = 0;  // of the last collective
    process_group::Collective call{};
    const char* name = nullptr;  // of what is no Collective
  };

  // group.cpp
  void order_behind_callers(const Operation& operation);
  Outcome enqueue(std::span<const process_group::Collective> calls, Operation& operation);
  std::shared_ptr<Operation> enter(std::span<const process_group::Collective> calls);
  [[noreturn]] void throw_refused(const std::string& operation, const std::string& why);
  void take_back(const Operation& operation, const Called& last_before);
  bool take_stock();
  void take_stock_for_good();
  bool take_stock_locked();
  bool has_ended(Operation& operation);
  void look_at_deadlines(std::chrono::steady_clock::time_point now);
  void look_at_communicator();
  std::shared_ptr<Operation> oldest() const;
  bool is_idle() const;
  void wait_until_idle();

  void call_back();

  // group_failure.cpp
  void fail(const Failure& failure);
  Failure failure_in(const Operation& operation) const;
  Failure failure_outside(Cause cause, const std::string& what) const;
  void fail_by(const Failure& call, const Outcome& outcome);
  void end_if_sticky() const;
  RankProgress progress() const;
  void say_that_it_left();
  void look_at_departure();
  void stand_guard();
  void handle_failure();
  void abort_communicator();
  void end_all();
  void tell_listener();
  FailedGroup failed_group() const;

  // group_memory.cpp
  using Words = std::vector<std::int64_t>;
  Words exchange(const std::array<std::int64_t, kWordsPerRank>& own, std::size_t bytes,
                 std::chrono::milliseconds timeout);
  void require_same_sizes(const Words& all);

  io::ForkGuard fork_guard_;
  process_group::Membership who_;
  int device_;
  std::unique_ptr<Communicator> communicator_;
  std::vector<int> job_ranks_;
  Stream stream_;
  Event before_;
  PinnedMemory words_on_host_;
  DeviceBuffer words_;
  DeviceClock clock_;
  flight_recorder::GroupLog log_;
  std::shared_ptr<GroupStatus> status_ = std::make_shared<GroupStatus>();

  mutable std::mutex mutex_;
  std::condition_variable became_idle_;
  std::deque<std::shared_ptr<Operation>> under_way_;  // guarded by mutex_, as are the next
  Called last_called_;
  std::uint64_t last_started_ = 0;  // numbers of collectives
  std::uint64_t last_completed_ = 0;
  bool is_closed_ = false;
  std::vector<Work::State::Callback> due_, due_with_error_;  // of what has been done, and of what the failure has ended
  int callbacks_due_ = 0;                                    // lists of these that are being called
  std::optional<Failure> departure_;  // of a rank that left in good order: what it was in comes to its end

  std::mutex stock_mutex_;  // of taking stock, clock_ and the next
  bool is_stock_final_ = false;

  std::optional<FailureBoard> board_;  // the guard's
  io::Cut wake_;                       // ends the guard's sleep
  io::Cut hurry_;                      // ends what it asks of the store
  std::atomic<bool> is_handled_{false};
  bool is_failure_taken_ = false;  // the guard's, and close()'s once that has ended
  std::mutex listener_mutex_;
  std::condition_variable listener_told_;
  process_group::Backend::FailureListener listener_;  // guarded by listener_mutex_, as are the next
  std::optional<std::string> found_itself_;           // why it failed, where the backend found that
  bool is_telling_ = false;
  std::thread guard_;
};

}  // namespace ddp::nccl_backend
