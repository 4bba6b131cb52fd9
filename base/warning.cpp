#include "base/warning.hpp"

#include <algorithm>
#include <utility>

namespace ddp::base {
namespace {

constexpr std::chrono::minutes kQuiet{1};

}  // namespace

std::optional<WarningLine> WarningTally::take(const Warning& warning, TimePoint now) {
  auto& reason = reasons_[warning.reason];
  ++reason.count;
  reason.last_source = warning.source;
  if (now < reason.quiet_ends || reason.untold_count != 0) {
    ++reason.untold_count;
    return {};
  }
  reason.quiet_ends = now + kQuiet;
  return WarningLine{warning.text, warning.where};
}

std::vector<std::string> WarningTally::tick(TimePoint now) {
  std::vector<std::string> lines;
  for (auto& [name, reason] : reasons_) {
    if (reason.untold_count == 0 || now < reason.quiet_ends) continue;
    lines.push_back(name + ": " + std::to_string(std::exchange(reason.untold_count, 0)) + " more within a minute" +
                    (reason.last_source.empty() ? "" : ", the last from " + reason.last_source));
    reason.quiet_ends = now + kQuiet;
  }
  return lines;
}

std::optional<WarningTally::TimePoint> WarningTally::next_deadline() const {
  std::optional<TimePoint> next;
  for (const auto& [name, reason] : reasons_)
    if (reason.untold_count != 0) next = next ? std::min(*next, reason.quiet_ends) : reason.quiet_ends;
  return next;
}

std::map<std::string, std::uint64_t> WarningTally::counts() const {
  std::map<std::string, std::uint64_t> counts;
  for (const auto& [name, reason] : reasons_) counts[name] = reason.count;
  return counts;
}

}  // namespace ddp::base
