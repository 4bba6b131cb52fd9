#include "launcher/node/round_report.hpp"

#include <algorithm>
#include <utility>

#include "launcher/node/accusation.hpp"
#include "rendezvous/membership/round_end.hpp"

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
  for (std::size_t i = 0; i < failures.size(); ++i) {
    auto& failure = failures[i];
    const auto kind = failure.ending.kind;
    if (kind != Kind::exited && kind != Kind::killed) continue;
    const auto message = i < reasons.messages.size() ? reasons.messages[i] : std::string();
    if (!message.empty()) failure.message = message;  // it says more than that the worker gave up its group
    if (!failure.accused.empty() || failure.is_own_error) continue;
    // Without an error file, Python's last words are on stderr.
    std::string words = message;
    if (failure.message.empty() && i < reasons.stderr_tails.size())
      for (const auto& line : reasons.stderr_tails[i]) words += line + '\n';
    auto accusation = accusation_of(words);
    failure.accused = std::move(accusation.ranks);
    failure.missed_a_peer = accusation.missed_a_peer;
  }
  if (failures.empty()) return give_up();
  const auto first = rendezvous::first_cause(failures);
  // What other nodes tell may show that another one is the cause.
  for (std::size_t i = 0; i < failures.size(); ++i) {
    if (i != first && !failures[i].accuses_nobody()) continue;
    if (i < reasons.stderr_tails.size()) failures[i].stderr_tail = reasons.stderr_tails[i];
    failures[i].stderr_lost = reasons.stderr_lost;
  }
  const auto at = failures.begin() + static_cast<std::ptrdiff_t>(first);
  std::rotate(failures.begin(), at, at + 1);
  return give_up();
}

}  // namespace ddp::launcher
