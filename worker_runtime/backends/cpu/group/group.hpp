// A group of the cpu backend: the ranks of one host or of several. It owns the parts that carry out a call, and brings
// each call to its turn.
//
//   members       who the ranks are, and where
//   rank_states   what is known of each rank
//   phases        how the ranks of a host keep step, and the errors of a wait
//   present_call  the call that is being carried out, and its record
//   host_news     what the leaders of hosts tell each other of ranks
//   host_calls    collectives over several hosts
//   pair_calls    sends and receives
//   joint_memory  memory that all ranks make together
//   ending        how the group ends, and who is told
//
// Threads: one caller at a time; abort() and set_failure_listener() from any. Jobs of the queue run one at a time.
// Fork:    a forked child leaks it, because its threads and mappings are not there.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "worker_runtime/backends/cpu/arrivals/arrivals.hpp"
#include "worker_runtime/backends/cpu/arrivals/peer_watch.hpp"
#include "worker_runtime/backends/cpu/communication_queue.hpp"
#include "worker_runtime/backends/cpu/group/ending.hpp"
#include "worker_runtime/backends/cpu/group/host_calls.hpp"
#include "worker_runtime/backends/cpu/group/host_news.hpp"
#include "worker_runtime/backends/cpu/group/joint_memory.hpp"
#include "worker_runtime/backends/cpu/group/members.hpp"
#include "worker_runtime/backends/cpu/group/pair_calls.hpp"
#include "worker_runtime/backends/cpu/group/phases.hpp"
#include "worker_runtime/backends/cpu/group/present_call.hpp"
#include "worker_runtime/backends/cpu/group/rank_states.hpp"
#include "worker_runtime/backends/cpu/memory/shared_memory.hpp"
#include "worker_runtime/backends/cpu/one_host/collectives.hpp"
#include "worker_runtime/core/bootstrap/meeting.hpp"
#include "worker_runtime/core/bootstrap/sub_meeting.hpp"
#include "worker_runtime/core/operation/group_status.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::cpu_backend {

using core::Meeting;
using core::NewGroup;
using process_group::AbortCause;
using process_group::GroupMember;

class Group {
 public:
  // Takes the shared file and maps it. The others are not told if that fails.
  Group(const GroupMember& who, Meeting& meeting);

  // Once, on all ranks, before any call. Throws, on all of them, if one can't go on.
  void begin(Meeting meeting, base::Deadline& deadline);

  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Several are begun as one: see ProcessGroup::coalesce. At least one.
  std::shared_ptr<Work::State> submit(std::span<const Collective> collectives);
  void run(const Collective& collective);
  RegisteredMemory allocate(std::size_t bytes, std::chrono::milliseconds timeout);

  // As process_group::Backend::split; null for one that is in no new group.
  std::unique_ptr<Group> split(const GroupMember& of_new, const std::vector<int>& ranks,
                               std::chrono::milliseconds timeout);

  void abort(const std::string& reason, AbortCause cause);
  void set_failure_listener(process_group::Backend::FailureListener tell) { ending_.set_listener(std::move(tell)); }

  bool in_forked_child() const { return memory_->fork_guard().in_forked_child(); }
  void require_own_process() const { memory_->fork_guard().require_own_process(); }

 private:
  class StepsHere;

  void require_usable() const {
    if (status_.has_failed()) status_.throw_unusable();
  }

  // Carries out a recorded call whose turn has come.
  template <class Steps>
  void in_turn(const Ticket& ticket, base::Deadline& deadline, const Steps& steps);

  // The same behind all earlier calls, and waits for its end.
  template <class Steps>
  void wait_for_turn(const Ticket& ticket, base::Deadline& deadline, const Steps& steps);

  void carry_out(std::span<const Collective> collectives, base::Deadline& deadline);
  void exchange(const Collective& collective, base::Deadline& deadline);
  [[gnu::noinline]] void exchange_unevenly(const Collective& collective, base::Deadline& deadline);
  std::shared_ptr<Segment> allocate_segment(std::size_t bytes, base::Deadline& deadline);
  std::unique_ptr<Group> split_in_turn(const NewGroup& made, base::Deadline& deadline);

  void start_threads(Meeting meeting);
  void begin_on_one_host(base::Deadline& deadline);
  void begin_on_several_hosts(base::Deadline& deadline);
  std::shared_ptr<Segment> reserve_staging(std::size_t bytes, base::Deadline& deadline, Gap unused = {});

  Members members_;
  std::shared_ptr<SharedMemory> memory_;
  Arrivals arrivals_;
  RankStates states_;
  core::GroupStatus status_;
  PresentCall call_;
  HostNews news_;
  Phases phases_;
  HostCalls hosts_;
  JointMemory joint_memory_;
  PairCalls pairs_;
  Ending ending_;
  std::optional<Collectives> collectives_;  // with one host
  std::shared_ptr<CommunicationQueue> queue_ = std::make_shared<CommunicationQueue>();
  std::optional<PeerWatch> watch_;  // last: its thread uses the parts above
};

}  // namespace ddp::cpu_backend
