// ddprun's log for operators. --log-level chooses the lines that go to stderr. The newest lines of all levels are kept,
// and are written to the log folder if the job ends badly.
//
// Threads: the event loop's only.
#pragma once

#include <functional>
#include <string>

#include "base/event_log.hpp"

namespace ddp::launcher {

class AgentLog {
 public:
  // `show` writes a line to stderr.
  AgentLog(base::LogLevel level, const std::string& run_id, std::function<void(const std::string& line)> show);
  AgentLog(const AgentLog&) = delete;

  // Logs an event of this node.
  void operator()(const base::LogEvent& event);

  // Logs a line that ddprun prints anyway.
  void note(const std::string& line);

  // Logs an event of the membership that this process serves.
  void of_host(const base::LogEvent& event, const base::LogFields& where);

  std::string take_kept();  // the newest lines of all levels

 private:
  base::EventLog log_;
  base::LogFields here_, host_;
};

}  // namespace ddp::launcher
