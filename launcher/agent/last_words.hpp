// What ddprun writes after its event loop has ended: the report of the run, and its own log. No other node waits for a
// slow disk then, and this process waits 2 s at most for each. The user reads on stderr what was not written.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/unique_fd.hpp"
#include "launcher/agent/report_file.hpp"

namespace ddp::launcher {

struct RunEnd {
  std::string run_id;
  int exit_code = 1;
  std::optional<rendezvous::FinishJob> verdict{};
};

// To the file of --report; null: none was asked for.
void write_report_file(std::shared_ptr<const ReportFile> file, const RunEnd& end);

// `open` returns the file; null: there are no log files.
void write_report_beside_logs(std::function<base::UniqueFd()> open, const RunEnd& end);
void write_own_log(std::function<base::UniqueFd()> open, std::string text);

}  // namespace ddp::launcher
