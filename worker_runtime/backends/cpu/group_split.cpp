#include <algorithm>
#include <utility>

#include "worker_runtime/backends/cpu/group.hpp"
#include "worker_runtime/core/bootstrap/sub_meeting.hpp"
#include "worker_runtime/process_group/deadline_after.hpp"

namespace ddp::cpu_backend {

std::unique_ptr<Group> Group::split(const Membership& of_new, const std::vector<int>& ranks,
                                    std::chrono::milliseconds timeout) {
  io::Deadline deadline = process_group::deadline_after(timeout);
  queue_->throw_unclaimed_error();
  require_usable();
  const Ticket ticket = log_.record({.name = "split", .timeout = timeout});
  std::unique_ptr<Group> made;
  run_in_turn(ticket, [&] {
    recorded(ticket, [&] { take_turn(deadline, [&] { made = split_in_turn({of_new, ranks}, deadline); }); });
  });
  return made;
}

std::unique_ptr<Group> Group::split_in_turn(const NewGroup& made, io::Deadline& deadline) {
  const auto gather = [&](std::span<const std::byte> own) {
    std::vector<std::byte> all(own.size() * static_cast<std::size_t>(who_.size));
    const Collective call{.kind = CollectiveKind::all_gather,
                          .input = {own.data(), own.size(), DataType::uint8},
                          .output = {all.data(), all.size(), DataType::uint8},
                          .within = process_group::Within::making_a_group};
    if (who_.size == 1) {
      std::copy(own.begin(), own.end(), all.begin());
    } else {
      guarded([&] { exchange(call, deadline); });
    }
    return all;
  };
  io::Deadline of_others = deadline;  // the group's own waits end by themselves, and say why
  of_others.cut_by(failure_cut_ ? &*failure_cut_ : nullptr);
  std::unique_ptr<Group> group;
  const auto duplicate_pidfd = [&](int rank) { return watch_->duplicate(layout_.index_of(rank)); };
  meet_within({who_, layout_, pids_, duplicate_pidfd, SharedMemory::make_file, network_, job_ranks_, gather}, made,
              {.make = [&](Meeting& meeting) { group = std::make_unique<Group>(made.who, meeting); },
               .begin = [&](Meeting meeting) { group->begin(std::move(meeting), of_others); }},
              of_others);
  return group;
}

}  // namespace ddp::cpu_backend
