// How a group ends on this rank: the first reason counts, all waits end, the other ranks see it, and whoever listens is
// told of a failure.
//
// Threads: any, but guarded() those of the queue's jobs, one at a time.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "base/cut.hpp"
#include "ddp/error.hpp"
#include "worker_runtime/backends/cpu/arrivals/arrivals.hpp"
#include "worker_runtime/backends/cpu/group/host_news.hpp"
#include "worker_runtime/backends/cpu/group/members.hpp"
#include "worker_runtime/backends/cpu/group/pair_calls.hpp"
#include "worker_runtime/backends/cpu/group/present_call.hpp"
#include "worker_runtime/backends/cpu/group/rank_states.hpp"
#include "worker_runtime/core/failure/failure.hpp"
#include "worker_runtime/core/failure/failure_listener.hpp"
#include "worker_runtime/core/failure/verdict.hpp"
#include "worker_runtime/core/operation/group_status.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::cpu_backend {

class Ending {
 public:
  // All of these outlive this object.
  struct Parts {
    const Members& members;
    Arrivals& arrivals;
    const RankStates& states;
    core::GroupStatus& status;
    PresentCall& call;
    HostNews& news;
    PairCalls& pairs;
  };

  explicit Ending(const Parts& parts) : parts_(parts) {}

  // An error in these steps ends the group: the group is given up with the error's message, and what the flight
  // recorder has is written to a file, which the message then names.
  template <class Steps>
  void guarded(const Steps& steps);

  // This rank leaves without an error. `reason` is that of an abort.
  void leave(Presence how, core::Cause cause, const std::string& reason = {});

  // As process_group::Backend::set_failure_listener.
  void set_listener(process_group::Backend::FailureListener tell) { listener_.set(std::move(tell)); }

  // What ends waits that are not the group's own, in a split. None before begin(), and for a rank that is alone. Throws
  // std::system_error.
  void begin() {
    if (parts_.members.who.size > 1) cut_.emplace();
  }
  base::Cut* cut() { return cut_ ? &*cut_ : nullptr; }

  // Ends these waits: a rank is lost, or the group is given up.
  void cut_waits() {
    if (cut_) cut_->cut("the process group that is split is of no further use");
  }

 private:
  void tell_agent(const std::exception& error) const;
  bool give_up(Presence how, core::Verdict why);
  std::string give_up_for(const Error& error);

  Parts parts_;
  std::optional<base::Cut> cut_;
  core::FailureListener listener_;
};

template <class Steps>
void Ending::guarded(const Steps& steps) {
  try {
    steps();
  } catch (const RankFailure& error) {
    throw RankFailure(give_up_for(error), error.ranks());
  } catch (const TimeoutError& error) {
    throw TimeoutError(give_up_for(error), error.ranks());
  } catch (const MismatchError& error) {
    throw MismatchError(give_up_for(error));
  } catch (const std::exception& error) {
    if (dynamic_cast<const AbortedError*>(&error) == nullptr) tell_agent(error);
    if (give_up(Presence::gave_up, core::verdict_of(error))) listener_.tell(error.what());
    throw;
  }
}

}  // namespace ddp::cpu_backend
