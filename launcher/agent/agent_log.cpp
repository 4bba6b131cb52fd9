#include "launcher/agent/agent_log.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <string_view>
#include <utility>

#include "base/host_name.hpp"
#include "base/with_limit.hpp"
#include "base/write_all.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::seconds kDiskLimit{2};

// Returns why not all of it was written; empty if it was.
std::string append(const std::function<base::UniqueFd()>& open, std::string_view text) {
  try {
    const auto file = open();
    const int error = base::write_all(file.get(), text);
    return error == 0 ? "" : std::strerror(error);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

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

std::string write_within_limit(std::function<base::UniqueFd()> open, std::string text) {
  if (!open) return {};
  const auto failure =
      base::run_with_limit(kDiskLimit, [open = std::move(open), text = std::move(text)] { return append(open, text); });
  return failure.value_or(kNoAnswer);
}

}  // namespace ddp::launcher
