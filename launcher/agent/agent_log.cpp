#include "launcher/agent/agent_log.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/host_name.hpp"

namespace ddp::launcher {
AgentLog::AgentLog(base::LogLevel level, const std::string& run_id, std::function<void(const std::string& line)> show)
    : log_(level, [show = std::move(show)](base::LogLevel, const std::string& line) { show(line); }) {
  here_.add("job", run_id).add("part", "node").add("node", base::host_name()).add("pid", ::getpid());
  host_.add("job", run_id).add("part", "membership").add("pid", ::getpid());
}

void AgentLog::operator()(const base::LogEvent& event) { log_(event, here_); }

void AgentLog::note(const std::string& line) { log_({"printed", base::LogFields().add("line", line)}, here_); }

void AgentLog::of_host(const base::LogEvent& event, const base::LogFields& where) {
  auto line = event;
  line.level = std::min(line.level, base::LogLevel::info);  // the node's own events say what went wrong
  log_(line, base::LogFields(host_).add(where));
}

std::string AgentLog::take_kept() { return log_.take_kept(); }

}  // namespace ddp::launcher
