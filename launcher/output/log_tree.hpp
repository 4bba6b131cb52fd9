// The folders and files of a run's logs:
//
//   <log-dir>/<run id>/round_<n>/rank_<r>/{stdout,stderr}.log, error.json
//   <log-dir>/<run id>/ddprun_<host>.log, where ddprun ended badly
//
// r is the global rank. Nothing here deletes, truncates or replaces a file: what exists is added to.
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
  void make_rank_directory(const std::string& run_id, std::uint32_t round, int rank) const;

  // Opens ddprun's own log of a run for appending, and makes its folder. Throws UsageError.
  base::UniqueFd open_own_log(const std::string& run_id, const std::string& host_name) const;

  std::string run_directory(const std::string& run_id) const;
  std::string round_directory(const std::string& run_id, std::uint32_t round) const;
  std::string rank_directory(const std::string& run_id, std::uint32_t round, int rank) const;

  // The highest <n> of the folders round_<n> that there are of this run; -1 where there is none.
  int highest_round(const std::string& run_id) const;

 private:
  explicit LogTree(std::string directory, std::string notice = "")
      : directory_(std::move(directory)), notice_(std::move(notice)) {}

  std::string directory_, notice_;
};

// For appending; made where there is none. Throws UsageError.
base::UniqueFd open_log_file(const std::string& path);

// A run id as the name of one folder: '/' and what can't be seen become '_', and so do the names "." and "..". Pure.
std::string folder_name_of(const std::string& run_id);

}  // namespace ddp::launcher
