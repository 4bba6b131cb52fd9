#include "worker_runtime/backends/cpu/group/ending.hpp"

#include <utility>

#include "worker_runtime/core/failure/departure.hpp"
#include "worker_runtime/core/failure/judge.hpp"

namespace ddp::cpu_backend {

void Ending::tell_agent(const std::exception& error) const {
  core::tell_failure(parts_.members.failed_group(), core::verdict_of(error), parts_.states.cut_off());
}

// Tells the other ranks first: writing a file takes its time.
std::string Ending::give_up_for(const Error& error) {
  tell_agent(error);
  if (give_up(Presence::gave_up, core::verdict_of(error))) listener_.tell(error.what());
  return parts_.call.end_by(error);
}

void Ending::leave(Presence how, core::Cause cause, const std::string& reason) {
  const core::Failure departure{.cause = cause, .rank = parts_.members.who.rank, .what = reason};
  give_up(how, core::judge(parts_.members.failed_group(), departure, {}));
}

// Returns whether this is the first reason.
bool Ending::give_up(Presence how, core::Verdict why) {
  const bool is_first = parts_.status.give_up(std::move(why));
  // Also if another thread is about to do the same: the caller may write to its memory right after.
  parts_.arrivals.presence().leave(how);
  if (!is_first) return false;
  parts_.arrivals.presence().interrupt();
  cut_waits();
  parts_.pairs.close(how);
  parts_.news.say_farewell(how);
  return true;
}

}  // namespace ddp::cpu_backend
