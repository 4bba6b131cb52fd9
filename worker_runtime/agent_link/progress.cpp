#include "worker_runtime/agent_link/progress.hpp"

#include <atomic>
#include <optional>

#include "worker_runtime/agent_link/process_link.hpp"

namespace ddp::agent_link {

namespace {

constexpr std::uint64_t kNone = UINT64_MAX;

// Kept without a link, too: a checkpoint may be found before the process meets the others.
std::atomic<bool> has_stepped{false};
std::atomic<std::uint64_t> commit_count{kNone};
std::atomic<std::uint64_t> saved_step{kNone};

std::optional<std::uint64_t> number_in(const std::atomic<std::uint64_t>& value) {
  const auto number = value.load();
  return number == kNone ? std::nullopt : std::optional(number);
}

void tell() {
  auto* const link = process_link();
  if (link == nullptr) return;
  link->tell({has_stepped.load(), number_in(commit_count), number_in(saved_step)});
}

}  // namespace

void begin_round(std::uint32_t round) {
  auto* const link = process_link();
  if (link == nullptr || !link->begin_round(round)) return;
  has_stepped.store(false);
  tell();
}

void tell_step() {
  if (has_stepped.load(std::memory_order_relaxed)) return;
  has_stepped.store(true);
  tell();
}

void tell_commits(std::uint64_t commits) {
  commit_count.store(commits, std::memory_order_relaxed);
  tell();
}

void tell_checkpoint_directory() {
  auto none = kNone;
  if (saved_step.compare_exchange_strong(none, 0)) tell();
}

void tell_checkpoint_saved(std::uint64_t step) {
  saved_step.store(step);
  tell();
}

}  // namespace ddp::agent_link
