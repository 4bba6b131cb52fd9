#include "launcher/node/run_summary.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdio>

#include "base/printable.hpp"
#include "launcher/node/node_words.hpp"

namespace ddp::launcher {
namespace {

using rendezvous::counted;
using rendezvous::describe_duration;
using rendezvous::FinishJob;
using rendezvous::RoundTimes;
using rendezvous::RunReport;
using std::chrono::milliseconds;

constexpr std::size_t kRoundsShownMax = 8;  // with a line before and one after them: ten
constexpr std::size_t kReasonBytesMax = 200;

std::string end_of_job(const FinishJob& verdict) {
  if (verdict.cause)
    return failure_text(*verdict.cause, verdict.cause->host) + rendezvous::certainty_text(verdict.is_cause_certain);
  if (verdict.what) return *verdict.what;
  if (verdict.exit_code == 0) return "all workers ended well";
  if (verdict.exit_code > 128) return "ddprun was stopped by " + rendezvous::signal_name(verdict.exit_code - 128);
  return "the job ended with exit code " + std::to_string(verdict.exit_code);
}

// "2.5 s (stop 1.5 s, start 1 s)"; parts that took no time are left out.
std::string way_to(const RoundTimes& round) {
  const struct {
    const char* name;
    milliseconds time;
  } parts[] = {{"detect", round.detect},
               {"stop", round.stop},
               {"rendezvous", round.rendezvous},
               {"start", round.start.value_or(milliseconds(0))},
               {"first step", round.first_step.value_or(milliseconds(0))}};
  milliseconds all{0};
  std::string list;
  for (const auto& part : parts) {
    if (part.time.count() == 0) continue;
    all += part.time;
    list += (list.empty() ? "" : ", ") + std::string(part.name) + " " + describe_duration(part.time);
  }
  return describe_duration(all) + (list.empty() ? "" : " (" + list + ")");
}

std::string line_of(const RoundTimes& round, const std::string& end) {
  const auto lost = round.lost && round.lost->count() > 0 ? " (" + describe_duration(*round.lost) + " of it lost)" : "";
  return "\n  round " + std::to_string(round.round) + ": " + counted(round.world_size, "worker") + " on " +
         counted(round.nodes, "node") + ", ready after " + way_to(round) + ", worked " +
         describe_duration(round.worked) + lost + ", until " + base::printable(end, kReasonBytesMax);
}

}  // namespace

std::vector<std::string> round_ends(const RunReport& report, const FinishJob& verdict) {
  std::vector<std::string> out;
  for (std::size_t i = 1; i < report.rounds.size(); ++i) out.push_back(report.rounds[i].why);
  if (!report.rounds.empty()) out.push_back(end_of_job(verdict));
  for (auto& end : out)
    if (end.empty()) end = kNextRoundBegan;
  return out;
}

std::string run_summary(const RunReport& report, const FinishJob& verdict) {
  auto out = counted(report.rounds_count, "round") + " in " + describe_duration(report.total);
  if (const auto goodput = report.goodput()) {
    char percent[16];
    std::snprintf(percent, sizeof percent, "%.1f %%", 100 * *goodput);
    out += std::string(", ") + percent + " of the time in steps that count";
  }
  const auto shown = std::min(report.rounds.size(), kRoundsShownMax);
  const bool are_all = static_cast<std::size_t>(report.rounds_count) == shown;
  if (!are_all) out += "; the last " + std::to_string(shown) + " were";
  const auto ends = round_ends(report, verdict);
  for (auto i = report.rounds.size() - shown; i < report.rounds.size(); ++i) out += line_of(report.rounds[i], ends[i]);
  return are_all ? out : out + "\n  --report=FILE, or report.json with --log-dir, has all that this node was told of";
}

}  // namespace ddp::launcher
