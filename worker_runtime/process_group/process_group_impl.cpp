#include "worker_runtime/process_group/process_group_impl.hpp"

#include <algorithm>

#include "ddp/error.hpp"
#include "worker_runtime/agent_link/process_link.hpp"
#include "worker_runtime/core/failure/departure.hpp"

namespace ddp {

using process_group::AbortCause;

ProcessGroup::Impl::~Impl() {
  const bool is_unwinding = std::uncaught_exceptions() > exceptions_at_start_;
  tell_departure(is_unwinding, "", "");
}

void ProcessGroup::Impl::abort(const std::string& reason) {
  tell_departure(true, "its process group was aborted: ", reason);
  abort(reason, AbortCause::program);
}

// The end of a sub-group says nothing about the process: the program may go on with the group of all ranks.
void ProcessGroup::Impl::tell_departure(bool is_own_error, const char* what, const std::string& reason) noexcept {
  if (!is_whole_job_ || agent_link::process_link() == nullptr) return;
  try {
    if (!has_failed()) core::tell_departure(member_, is_own_error, what + reason);
  } catch (...) {  // without memory, the agent is not told
  }
}

void ProcessGroup::Impl::abort(const std::string& reason, AbortCause cause) {
  {
    const std::lock_guard lock(mutex_);
    is_aborted_ = true;
  }
  if (cause == AbortCause::round_over) {
    std::vector<std::weak_ptr<Impl>> sub_groups;
    {
      const std::lock_guard lock(mutex_);
      if (!round_over_) round_over_ = reason;
      sub_groups.swap(sub_groups_);
    }
    for (const auto& each : sub_groups) {
      if (const auto group = each.lock()) group->abort(reason, cause);
    }
  }
  backend_->abort(reason, cause);
}

void ProcessGroup::Impl::add_sub_group(const std::shared_ptr<Impl>& group) {
  std::optional<std::string> round_over;
  {
    const std::lock_guard lock(mutex_);
    round_over = round_over_;
    const auto has_ended = [](const std::weak_ptr<Impl>& each) { return each.expired(); };
    sub_groups_.erase(std::remove_if(sub_groups_.begin(), sub_groups_.end(), has_ended), sub_groups_.end());
    if (!round_over) sub_groups_.push_back(group);
  }
  if (round_over) group->abort(*round_over, AbortCause::round_over);
}

void ProcessGroup::Impl::require_not_given_up() {
  const std::lock_guard lock(mutex_);
  if (round_over_) throw RoundOver(*round_over_);
  if (is_aborted_) throw AbortedError("the process group was aborted");
}

bool ProcessGroup::Impl::has_failed() {
  bool failed = false;
  {
    const std::lock_guard lock(mutex_);
    failed = is_aborted_;
  }
  backend_->set_failure_listener([&failed](const std::string&) { failed = true; });
  backend_->set_failure_listener({});
  return failed;
}

namespace process_group {

ProcessGroup::Impl& require_group(const std::shared_ptr<ProcessGroup::Impl>& impl) {
  if (!impl) throw InvalidArgument("this ProcessGroup is empty\ntry:   make it with init_process_group()");
  return *impl;
}

void require_not_coalescing(const ProcessGroup::Impl& group, const char* call) {
  if (group.coalescing == nullptr) return;
  throw InvalidArgument(std::string(call) +
                        " within coalesce(), where calls only begin\ntry:   an _async call, or this one outside");
}

}  // namespace process_group

}  // namespace ddp
