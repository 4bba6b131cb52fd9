// The log of ddp-rendezvous. Events go to stderr, at a limited rate, because peers can cause them (line_limit.hpp);
// warnings and errors have a limit of their own. The event loop never waits for stderr (line_writer.hpp). When a job
// ends badly, the newest lines of all levels are added to a file in the log folder, if there is one.
//
// Threads: the event loop's only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <optional>
#include <string>

#include "base/event_log.hpp"
#include "base/file_thread.hpp"
#include "base/line_log.hpp"
#include "base/line_writer.hpp"
#include "base/warning.hpp"

namespace ddp::rendezvous {

struct DaemonLogOptions {
  base::LogLevel level = base::LogLevel::info;  // least level that goes to stderr
  std::optional<std::string> directory{};       // of the file
};

class DaemonLog {
 public:
  // The file grows by appending. Beyond kFileBytesMax it is renamed to <name>.old, which replaces an older one.
  static constexpr const char* kFileName = "ddp-rendezvous.log";
  static constexpr std::size_t kFileBytesMax = 8 << 20;

  // Throws InvalidArgument if the file cannot be made in the folder, std::system_error if no thread can be started.
  DaemonLog(boost::asio::io_context& io, const DaemonLogOptions& options);
  ~DaemonLog();  // waits up to 2 s for the file
  DaemonLog(const DaemonLog&) = delete;

  void operator()(const base::LogEvent& event, const base::LogFields& where = {}) { log_(event, where); }

  // Adds the kept lines to the file, if there is one.
  void write_kept();

  // Warnings about refused and closed connections.
  base::WarningLog& warnings() { return warnings_; }

 private:
  void post_kept();
  void note_failure(int error);

  base::BoundedLog events_, serious_;
  base::LineWriter write_{2, "ddp-rendezvous"};  // stderr
  base::EventLog log_;
  base::WarningLog warnings_;
  std::string path_;  // empty: no file
  bool is_writing_ = false, is_wanted_again_ = false;
  std::optional<base::FileThread> file_;
};

}  // namespace ddp::rendezvous
