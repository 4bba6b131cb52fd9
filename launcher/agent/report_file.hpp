// The report of the run as a JSON file (--report).
#pragma once

#include <optional>
#include <string>

#include "base/unique_file.hpp"
#include "rendezvous/membership/messages.hpp"

namespace ddp::launcher {

// How a run has ended, for this ddprun.
struct RunEnd {
  std::string run_id;
  int exit_code = 1;
  std::optional<rendezvous::FinishJob> verdict{};
  std::string earlier_rounds{};  // lines of round_line(), of which the verdict's report may have the last ones too
};

// Pure. Without a report in the verdict, or without one, because membership was lost before, its values are null. Ends
// in a newline.
std::string report_json(const RunEnd& end);

// Pure: one round in the form of the report, as one line. `why`: what ended it.
std::string round_line(const rendezvous::RoundTimes& round, const std::string& why);

// Opened, and emptied, when the job starts: whoever asks for a report at a wrong path hears of it before the training.
class ReportFile {
 public:
  explicit ReportFile(std::string path);  // throws UsageError

  bool is_empty() const;
  void write(const std::string& text) const;  // throws std::system_error

 private:
  std::string path_;
  base::UniqueFile file_;
};

// Writes a report_json(). Without a report it leaves what is there: another node may have the same file. Returns why
// the report cannot be written; empty if it was. May wait for the disk.
std::string write_report(const ReportFile& file, const RunEnd& end);

}  // namespace ddp::launcher
