// A pipe for ddprun's last words: how the job has ended. The ddprun of a host has one if another ddprun has started it
// (launcher/remote), which shows equal reports of several hosts once.
//
// Threads: the main thread only.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/unique_fd.hpp"

namespace ddp::launcher {

constexpr const char* kReportPipeVariable = "DDPRUN_REPORT_FD";  // the number of the descriptor
constexpr std::size_t kReportBytesMax = 64 * 1024;               // what is beyond that is not passed on

class ReportPipe {
 public:
  // Takes the pipe and its variable out of this process's environment, so that no program which is started later
  // inherits either. Has no pipe if the variable is not there or names no pipe.
  static ReportPipe take();

  ReportPipe() = default;
  explicit ReportPipe(base::UniqueFd pipe);

  // Writes the text and ends its line. False: there is no pipe, or it has not taken the text within 2 s.
  bool write(std::string_view text) const;

  int fd() const { return pipe_.get(); }  // -1: none

 private:
  base::UniqueFd pipe_;
};

}  // namespace ddp::launcher
