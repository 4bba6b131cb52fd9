// The folders and files of a run's logs:
//
//   <log-dir>/<job>/round_<n>/rank_<r>/{stdout,stderr}.log, error.json
//   <log-dir>/<job>/report.json
//   <log-dir>/<job>/ddprun_<host>.log, where ddprun ended badly
//   <log-dir>/latest, a link to the newest <job>
//
// <job> is job_folder(). r is the global rank. Nothing here deletes, truncates or replaces a log file: what exists is
// added to. Flight recorder files (of libddp) are kept of the newest rounds only.
#pragma once

#include <cstdint>
#include <string>

#include "base/unique_fd.hpp"

namespace ddp::launcher {

class LogTree {
 public:
  // --log-dir. Makes it with its parents. Throws UsageError where it can't be made or written to.
  static LogTree at(const std::string& directory);

  // $TMPDIR/ddprun_<uid>, for who wants log files and names no place; nobody else can look into it. If that folder is
  // not this user's alone, a new one with a random end to its name. Throws UsageError.
  static LogTree in_temporary_directory();

  // Why it is not where it usually is; empty where it is.
  const std::string& notice() const { return notice_; }

  // Makes the folder of a rank in a round. Throws UsageError.
  void make_rank_directory(const std::string& job, std::uint32_t round, int rank) const;

  // Removes what flight recorders have written in one round.
  void remove_recordings(const std::string& job, std::uint32_t round) const;

  // Opens ddprun's own log of a job for appending, and makes its folder. Throws UsageError.
  base::UniqueFd open_own_log(const std::string& job, const std::string& host_name) const;

  // Opens and empties the job's report. Throws UsageError.
  base::UniqueFd open_report(const std::string& job) const;

  // Lets `latest` lead to this job's folder, unless it leads to that of one that began later. A file or folder of that
  // name stays. Tries once: logs are complete without the link.
  void point_latest_at(const std::string& job) const;

  std::string job_directory(const std::string& job) const;
  std::string round_directory(const std::string& job, std::uint32_t round) const;
  std::string rank_directory(const std::string& job, std::uint32_t round, int rank) const;

  // The highest <n> of the folders round_<n> that there are of jobs with this run id; -1 where there is none. So a job
  // that begins in the same second as one before it does not write to the files of that one.
  int highest_round(const std::string& run_id) const;

 private:
  explicit LogTree(std::string directory, std::string notice = "")
      : directory_(std::move(directory)), notice_(std::move(notice)) {}

  std::string directory_, notice_;
};

// For appending; made where there is none. Throws UsageError.
base::UniqueFd open_log_file(const std::string& path);

// Writes something to a file of its own there: 0, or the errno for which that fails. May wait for the disk.
int try_writing(const std::string& directory);

// A run id or a host as the name of one folder: '/' and what can't be seen become '_', and so do the names "." and
// "..". Pure.
std::string folder_name_of(const std::string& text);

// The name of a job's folder: when it began (Unix seconds, shown in UTC) and its run id, so that names sort by time.
// Without a time (0) the run id alone. Pure.
std::string job_folder(const std::string& run_id, std::uint64_t job_started);

}  // namespace ddp::launcher
