// What ddprun writes at its end: the report of the run, and its own log. No other node waits for a slow disk then, and
// this process waits 2 s at most for each. Each returns what the user is to read of it: empty if all was written.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/unique_fd.hpp"
#include "launcher/agent/report_file.hpp"

namespace ddp::launcher {

// To the file of --report; null: none was asked for.
std::string write_report_file(std::shared_ptr<const ReportFile> file, const RunEnd& end);

// `open` returns the file; null: there are no log files.
std::string write_report_beside_logs(std::function<base::UniqueFd()> open, const RunEnd& end);
std::string write_own_log(std::function<base::UniqueFd()> open, std::string text);

}  // namespace ddp::launcher
