#include "launcher/agent/report_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/write_all.hpp"
#include "launcher/command_line/usage_error.hpp"

namespace ddp::launcher {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

Json seconds(const std::optional<milliseconds>& duration) {
  return duration ? Json(static_cast<double>(duration->count()) / 1000) : Json();
}

Json json_of(const rendezvous::RoundTimes& round) {
  return {{"round", round.round},
          {"why", round.why},
          {"nodes", round.nodes},
          {"world_size", round.world_size},
          {"detect_seconds", seconds(round.detect)},
          {"stop_seconds", seconds(round.stop)},
          {"rendezvous_seconds", seconds(round.rendezvous)},
          {"start_seconds", seconds(round.start)},
          {"first_step_seconds", seconds(round.first_step)},
          {"worked_seconds", seconds(round.worked)}};
}

}  // namespace

std::string report_json(const std::string& run_id, int exit_code, const std::optional<rendezvous::RunReport>& report) {
  Json out{{"run_id", run_id},   {"exit_code", exit_code},  {"total_seconds", nullptr}, {"worked_seconds", nullptr},
           {"goodput", nullptr}, {"rounds_count", nullptr}, {"rounds", Json::array()}};
  if (report) {
    out["total_seconds"] = seconds(report->total);
    out["worked_seconds"] = seconds(report->worked);
    out["goodput"] = std::round(report->goodput() * 10'000) / 10'000;
    out["rounds_count"] = report->rounds_count;
    for (const auto& round : report->rounds) out["rounds"].push_back(json_of(round));
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

std::string write_report(const ReportFile& file, const std::string& run_id, int exit_code,
                         const std::optional<rendezvous::RunReport>& report) {
  if (!report && !file.is_empty()) return {};
  try {
    file.write(report_json(run_id, exit_code, report));
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace ddp::launcher
