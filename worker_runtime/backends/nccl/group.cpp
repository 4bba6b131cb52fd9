#include "worker_runtime/backends/nccl/group.hpp"

#include <unistd.h>

#include <exception>
#include <utility>

#include "worker_runtime/process_group/deadline_after.hpp"

namespace ddp::nccl_backend {

namespace {

using core::Cause;

constexpr std::chrono::seconds kUnwindingLimit{2};  // for what is under way when a program unwinds from an error
constexpr std::chrono::seconds kAbortLimit{30};     // the device takes less than one, unless it hangs

flight_recorder::GroupFacts facts_of(const GroupParts& parts) {
  return {.backend = "nccl",
          .name = parts.who.name,
          .description = std::to_string(parts.who.size) + (parts.who.size == 1 ? " rank" : " ranks"),
          .track = {},
          .library = version_text(parts.communicator->library().version()),
          .round = parts.who.round,
          .ranks = parts.job_ranks,
          .rank = parts.who.rank};
}

core::FailedGroup place_of(const GroupParts& parts) {
  const NcclLibrary& nccl = parts.communicator->library();
  return {parts.who,   parts.job_ranks,  static_cast<int>(::getpid()), "cuda:" + std::to_string(parts.device),
          nccl.name(), nccl.log_advice()};
}

std::shared_ptr<GroupState> state_of(GroupParts& parts) {
  auto place = place_of(parts);
  auto facts = facts_of(parts);
  auto* const state = new GroupState(std::move(place), parts.device, std::move(parts.communicator), std::move(facts));
  return {state, [](GroupState* made) {
            if (!made->fork_guard.in_forked_child()) delete made;  // else leaked: it is the parent's
          }};
}

}  // namespace

Group::Group(GroupParts parts)
    : state_(state_of(parts)),
      progress_(*state_),
      failure_(*state_, progress_, std::move(parts.board)),
      calls_(state_, failure_),
      memory_(state_, calls_, failure_) {}

std::unique_ptr<Group> Group::make(GroupParts parts) {
  std::unique_ptr<Group> group(new Group(std::move(parts)));
  try {
    group->start();
  } catch (...) {
    group->close();
    throw;
  }
  return group;
}

void Group::start() {
  check(cudaMemsetAsync(calls_.words(), 0, calls_.words_bytes(), state_->stream.get()), "zeroing device memory");
  progress_.start_clock();
  failure_.start();
  Watch::of_process().add(this);
}

void Group::close() {
  if (std::exchange(is_closed_, true)) return;
  const core::GroupStatus& status = *state_->status;
  UnderWay& under_way = state_->under_way;
  if (!under_way.is_idle()) Watch::of_process().wake();
  // Each call ends at its deadline at the latest. A program that unwinds from an error is not held up for as long.
  if (std::uncaught_exceptions() == 0) {
    under_way.wait_until_idle();
  } else {
    under_way.wait_until_idle(kUnwindingLimit);
  }
  if (!status.has_failed() && !under_way.is_idle()) failure_.fail(state_->failure(Cause::left, "it was destroyed"));
  failure_.stop();
  Watch::of_process().remove(this);
  if (status.has_failed()) {
    failure_.handle_if_new();  // the last look found it, when the handler's thread had gone
    under_way.end_all();       // what was entered as the group failed
  } else {
    failure_.leave();
  }
  under_way.wait_for_callbacks();
}

// In the watching thread.
Look Group::look(std::chrono::steady_clock::time_point now) {
  const core::GroupStatus& status = *state_->status;
  UnderWay& under_way = state_->under_way;
  if (status.has_failed()) {
    if (failure_.is_handled()) return Look::idle;
    if (now - status.failed_at() > kAbortLimit) {
      end_process("what a group had under way on cuda:" + std::to_string(device()) +
                  " did not end within 30 s of its abort\ntry:   `dmesg | grep -i xid` tells whether the GPU failed");
    }
    return Look::unchanged;
  }
  if (under_way.is_idle() && !calls_.has_captured()) return Look::idle;
  try {
    const DeviceGuard guard(device());
    const bool has_progressed = progress_.look();
    under_way.post_callbacks();
    if (const auto departure = under_way.departure_in_vain()) failure_.fail(*departure);
    if (const auto late = under_way.late(now)) failure_.fail(*late);
    look_at_communicator();
    return has_progressed ? Look::progressed : Look::unchanged;
  } catch (const CudaError& error) {
    failure_.fail(state_->failure(Cause::device, error.what()));
  } catch (const std::exception& error) {
    failure_.fail(state_->failure(Cause::transport, error.what()));
  }
  return Look::unchanged;
}

void Group::look_at_communicator() {
  const Outcome outcome = state_->communicator->state();
  if (outcome.kind != Outcome::Kind::failed) return;
  const std::shared_ptr<Operation> oldest = state_->under_way.oldest();
  failure_.fail_by(oldest ? failure_.failure_in(*oldest) : state_->failure(Cause::transport, ""), outcome);
}

std::unique_ptr<Group> Group::split(const process_group::GroupMember& of_new, const std::vector<int>& ranks,
                                    std::chrono::milliseconds timeout) {
  state_->status->throw_if_failed();
  const DeviceGuard guard(device());
  state_->under_way.wait_until_idle();  // what is under way ends by itself: by its deadline at the latest
  state_->status->throw_if_failed();
  auto made = split_communicator(ranks.empty() ? abi::kSplitNoColor : ranks[0], of_new, timeout);
  if (!made) return nullptr;
  GroupParts parts{.who = of_new, .device = device(), .communicator = std::move(made), .board = {}, .job_ranks = {}};
  for (const int rank : ranks) parts.job_ranks.push_back(state_->place.job_ranks[static_cast<std::size_t>(rank)]);
  if (const FailureBoard::Place* const board = failure_.board_place()) {
    parts.board = FailureBoard::Place{board->store, board->key_prefix + of_new.name + "/", of_new.rank, of_new.size};
  }
  return make(std::move(parts));
}

// Null for kSplitNoColor.
std::unique_ptr<Communicator> Group::split_communicator(int color, const process_group::GroupMember& of_new,
                                                        std::chrono::milliseconds timeout) {
  flight_recorder::GroupLog& log = state_->log;
  const auto ticket = log.record(flight_recorder::Operation{.name = "split", .timeout = timeout});
  state_->under_way.note("split", ticket.collective_sequence);
  log.start(ticket);
  base::Deadline deadline = process_group::deadline_after(timeout);
  auto [outcome, made] = state_->communicator->split(color, of_new.rank, of_new.name, deadline);
  if (outcome.kind != Outcome::Kind::done || (color != abi::kSplitNoColor && !made)) {
    log.fail(ticket);
    Failure failure = state_->failure(Cause::transport, outcome.text);
    failure.operation = "split";
    failure.number = ticket.collective_sequence;
    failure.limit = timeout;
    failure_.fail_by(failure, outcome);
    state_->status->throw_failure();
  }
  log.complete(ticket);
  return std::move(made);
}

}  // namespace ddp::nccl_backend
