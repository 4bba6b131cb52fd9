#include "launcher/node/round_report.hpp"

#include <algorithm>

namespace ddp::launcher {

std::uint64_t RoundReport::hold(rendezvous::RoundEnded report, TimePoint now) {
  held_ = std::move(report);
  deadline_ = now + kReasonsLimit;
  return ++number_;
}

std::optional<rendezvous::RoundEnded> RoundReport::complete(std::uint64_t number, const Reasons& reasons) {
  if (!held_ || number != number_) return {};
  using Kind = rendezvous::Ending::Kind;
  auto& failures = held_->failures;
  for (std::size_t i = 0; i < std::min(failures.size(), reasons.messages.size()); ++i)
    if (const auto kind = failures[i].ending.kind;
        !reasons.messages[i].empty() && (kind == Kind::exited || kind == Kind::killed))
      failures[i].message = reasons.messages[i];  // it says more than that the worker gave up its group
  if (!failures.empty()) {
    failures.front().stderr_tail = reasons.stderr_tail;
    failures.front().stderr_lost = reasons.stderr_lost;
  }
  return give_up();
}

}  // namespace ddp::launcher
