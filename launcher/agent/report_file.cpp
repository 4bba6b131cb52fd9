#include "launcher/agent/report_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/write_all.hpp"
#include "launcher/command_line/usage_error.hpp"
#include "launcher/node/run_summary.hpp"

namespace ddp::launcher {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

Json seconds(const std::optional<milliseconds>& duration) {
  return duration ? Json(static_cast<double>(duration->count()) / 1000) : Json();
}

// Another worker that failed in the last round: because of the cause, as far as is known.
Json json_of(const rendezvous::FailureReport& failure) {
  return {{"rank", failure.rank},
          {"host", failure.host},
          {"how", rendezvous::describe(failure.ending)},
          {"after_seconds", seconds(failure.after)},
          {"accused_ranks", failure.accused},
          {"killed_for", failure.is_killed_by_ddprun() ? Json(failure.killed_for) : Json()}};
}

// The failure that was seen before the cause.
Json seen_first_of(const rendezvous::FinishJob& verdict) {
  for (const auto& failure : verdict.consequences)
    if (failure.rank == verdict.seen_first)
      return {{"rank", failure.rank},
              {"host", failure.host},
              {"how", rendezvous::describe(failure.ending)},
              {"seconds_before_cause", seconds(verdict.cause->job_time - failure.job_time)}};
  return nullptr;
}

// The worker that ended the job, and where its words are.
Json json_of(const rendezvous::FailureReport& cause, bool is_certain) {
  using Kind = rendezvous::Ending::Kind;
  const auto kind = cause.ending.kind;
  return {{"rank", cause.rank},
          {"is_certain", is_certain},
          {"host", cause.host},
          {"pid", cause.pid == 0 ? Json() : Json(cause.pid)},
          {"exit_code", kind == Kind::exited ? Json(cause.ending.value) : Json()},
          {"signal", kind == Kind::killed ? Json(rendezvous::signal_name(cause.ending.value)) : Json()},
          {"out_of_memory", cause.ending.out_of_memory ? Json(*cause.ending.out_of_memory) : Json()},
          {"killed_for", cause.is_killed_by_ddprun() ? Json(cause.killed_for) : Json()},
          {"message", cause.says_why() ? Json(cause.message) : Json()},
          {"stderr_file", cause.stderr_file.empty() ? Json() : Json(cause.stderr_file)},
          {"stderr_tail", cause.stderr_tail}};
}

Json json_of(const rendezvous::RoundTimes& round, const std::string& end) {
  return {{"round", round.round},
          {"why", end},
          {"cause", nullptr},
          {"nodes", round.nodes},
          {"world_size", round.world_size},
          {"detect_seconds", seconds(round.detect)},
          {"stop_seconds", seconds(round.stop)},
          {"rendezvous_seconds", seconds(round.rendezvous)},
          {"start_seconds", seconds(round.start)},
          {"first_step_seconds", seconds(round.first_step)},
          {"worked_seconds", seconds(round.worked)},
          {"lost_seconds", seconds(round.lost)}};
}

}  // namespace

std::string round_line(const rendezvous::RoundTimes& round, const std::string& why) {
  return json_of(round, why.empty() ? kNextRoundBegan : why).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string report_json(const RunEnd& end) {
  const auto& verdict = end.verdict;
  Json out{{"run_id", end.run_id},     {"exit_code", end.exit_code}, {"left", verdict && verdict->has_left},
           {"total_seconds", nullptr}, {"worked_seconds", nullptr},  {"goodput", nullptr},
           {"rounds_count", nullptr},  {"rounds", Json::array()}};
  const bool are_newest_told = verdict && verdict->report && !verdict->report->rounds.empty();
  std::istringstream lines(end.earlier_rounds);
  for (std::string line; std::getline(lines, line);) {
    auto round = Json::parse(line, nullptr, false);
    if (!round.is_object()) continue;  // the disk took a part of it
    if (are_newest_told && round["round"] >= verdict->report->rounds.front().round) break;
    out["rounds"].push_back(std::move(round));
  }
  if (verdict && verdict->report) {
    const auto& report = verdict->report;
    out["total_seconds"] = seconds(report->total);
    out["worked_seconds"] = seconds(report->worked);
    if (const auto goodput = report->goodput()) out["goodput"] = std::round(*goodput * 10'000) / 10'000;
    out["rounds_count"] = report->rounds_count;
    const auto ends = round_ends(*report, *verdict);
    for (std::size_t i = 0; i < ends.size(); ++i) out["rounds"].push_back(json_of(report->rounds[i], ends[i]));
    if (verdict->cause && !ends.empty()) {
      auto& last = out["rounds"].back();
      last["cause"] = json_of(*verdict->cause, verdict->is_cause_certain);
      last["seen_first"] = seen_first_of(*verdict);
      last["other_failures"] = Json::array();
      for (const auto& failure : verdict->consequences) last["other_failures"].push_back(json_of(failure));
    }
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

ReportFile::ReportFile(std::string path)
    : path_(std::move(path)),
      file_(base::UniqueFd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666))) {
  if (!file_)
    throw UsageError("the report can't be written to " + path_ + ": " + std::strerror(errno), "--report",
                     "a file in a folder that exists and that you can write to: `--report=report.json`");
}

bool ReportFile::is_empty() const {
  struct stat status {};
  return ::fstat(file_.get(), &status) == 0 && status.st_size == 0;
}

void ReportFile::write(const std::string& text) const {
  if (const int error = base::write_all(file_.get(), text); error != 0)
    throw std::system_error(error, std::generic_category(), "the report can't be written to " + path_);
}

std::string write_report(const ReportFile& file, const RunEnd& end) {
  if (!(end.verdict && end.verdict->report) && !file.is_empty()) return {};
  try {
    file.write(report_json(end));
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace ddp::launcher
