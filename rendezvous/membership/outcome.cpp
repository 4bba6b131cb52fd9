#include "rendezvous/membership/outcome.hpp"

#include <algorithm>
#include <cerrno>

namespace ddp::rendezvous {
namespace {

constexpr int kFailed = 1, kWrongUse = 2, kUnusable = 126, kMissing = 127, kFirstSignal = 128;  // as shells do

// 75 to 77 are ddprun's own verdicts. A worker's code of that value becomes 1.
int code_of_worker(const Ending& ending) {
  switch (ending.kind) {
    case Ending::Kind::exited:
      return ending.value >= kStoppedAtStep && ending.value <= kRendezvousFailed ? kFailed : ending.value;
    case Ending::Kind::killed: return kFirstSignal + ending.value;
    case Ending::Kind::not_started: return ending.value == ENOENT ? kMissing : kUnusable;
    case Ending::Kind::left: return kFailed;
  }
  return kFailed;
}

struct CodeOf {
  int operator()(const outcome::Success&) const { return 0; }
  int operator()(const outcome::WorkerFailed& what) const { return code_of_worker(what.ending); }
  int operator()(const outcome::StoppedBySignal& what) const { return kFirstSignal + what.signal_number; }
  int operator()(const outcome::TimeIsOver&) const { return kTimeIsOver; }
  int operator()(const outcome::StoppedAtStep&) const { return kStoppedAtStep; }
  int operator()(const outcome::NoProgress&) const { return kNoProgress; }
  int operator()(const outcome::NotTogether&) const { return kRendezvousFailed; }
  int operator()(const outcome::Unexplained&) const { return kFailed; }
  int operator()(const outcome::Told& what) const { return what.exit_code; }
  int operator()(const outcome::GuardianEnded& what) const { return std::max(kFailed, code_of_worker(what.ending)); }
  int operator()(const outcome::WrongUse&) const { return kWrongUse; }
  int operator()(const outcome::ProgramMissing&) const { return kMissing; }
  int operator()(const outcome::ProgramUnusable&) const { return kUnusable; }
  int operator()(const outcome::NotStarted&) const { return kFailed; }
};

}  // namespace

int exit_code_of(const Outcome& outcome) { return std::visit(CodeOf(), outcome); }

std::optional<int> exit_code_of_killed(int signal_number) {
  if (signal_number == 0) return {};
  return exit_code_of(outcome::StoppedBySignal{signal_number});
}

}  // namespace ddp::rendezvous
