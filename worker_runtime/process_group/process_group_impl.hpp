// What a ProcessGroup is made of: who this process is, and the backend that does the work.
//
// Threads: as ProcessGroup; abort() and add_sub_group() from any.
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker_runtime/process_group/backend.hpp"
#include "worker_runtime/process_group/coalescing.hpp"

namespace ddp {

class ProcessGroup::Impl {
 public:
  // `is_whole_job`: it has all ranks that the launcher started.
  Impl(process_group::GroupMember member, std::chrono::milliseconds timeout,
       std::unique_ptr<process_group::Backend> backend, bool is_whole_job)
      : member_(std::move(member)), timeout_(timeout), is_whole_job_(is_whole_job), backend_(std::move(backend)) {}

  // The group of all ranks tells the agent first, if it has not failed: this rank leaves in order, or unwinds from an
  // error.
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const process_group::GroupMember& member() const { return member_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  process_group::Backend& backend() const { return *backend_; }

  // While the calls of a coalesce() are made; else null.
  process_group::Coalescing* coalescing = nullptr;

  // Of all the groups that were made of this one, on whatever ranks: the same on each.
  int sub_group_count = 0;

  // By the program. The group of all ranks tells the agent first.
  void abort(const std::string& reason);

  // As Backend::abort. The end of the round ends the groups that were made of this one, too.
  void abort(const std::string& reason, process_group::AbortCause cause);
  void add_sub_group(const std::shared_ptr<Impl>& group);

  // Throws RoundOver or AbortedError if the group was given up. From any thread. What only a call finds out does not
  // count.
  void require_not_given_up();

  // Whether the group is of no further use: it was aborted, or the backend has found so itself. Takes the place of the
  // backend's failure listener.
  bool has_failed();

 private:
  void tell_departure(bool is_own_error, const char* what, const std::string& reason) noexcept;

  process_group::GroupMember member_;
  std::chrono::milliseconds timeout_;  // of a collective that names none
  bool is_whole_job_;
  int exceptions_at_start_ = std::uncaught_exceptions();
  std::unique_ptr<process_group::Backend> backend_;
  std::mutex mutex_;
  bool is_aborted_ = false;                // guarded by mutex_, as are the next two
  std::optional<std::string> round_over_;  // why the round is over
  std::vector<std::weak_ptr<Impl>> sub_groups_;
};

namespace process_group {

// Throws InvalidArgument for an empty ProcessGroup.
ProcessGroup::Impl& require_group(const std::shared_ptr<ProcessGroup::Impl>& impl);

// Throws InvalidArgument, where the calls of a coalesce() are being made, for one that can't be part of it.
void require_not_coalescing(const ProcessGroup::Impl& group, const char* call);

}  // namespace process_group

}  // namespace ddp
