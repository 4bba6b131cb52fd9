#include "launcher/agent/agent_log.hpp"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <exception>
#include <string_view>
#include <utility>

#include "base/file_thread.hpp"
#include "base/host_name.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::seconds kDiskLimit{2};

void append(const std::function<base::UniqueFd()>& open, std::string_view text) {
  try {
    const auto file = open();
    while (!text.empty()) {
      const auto written = ::write(file.get(), text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return;
      text.remove_prefix(static_cast<std::size_t>(written));
    }
  } catch (const std::exception&) {  // the file cannot be opened
  }
}

}  // namespace

AgentLog::AgentLog(boost::asio::io_context& io, base::LogLevel level, const std::string& run_id,
                   std::function<void(const std::string& line)> show)
    : io_(io), log_(level, [show = std::move(show)](base::LogLevel, const std::string& line) { show(line); }) {
  here_.add("job", run_id).add("part", "node").add("node", base::host_name()).add("pid", ::getpid());
  host_.add("job", run_id).add("part", "membership").add("pid", ::getpid());
}

void AgentLog::operator()(const base::LogEvent& event) { log_(event, here_); }

void AgentLog::note(const std::string& line) { log_({"printed", base::LogFields().add("line", line)}, here_); }

void AgentLog::of_host(const base::LogEvent& event, const base::LogFields& where) {
  log_(event, base::LogFields(host_).add(where));
}

void AgentLog::write_kept(std::function<base::UniqueFd()> open) noexcept {
  if (!open) return;
  try {
    base::FileThread disk(io_, kDiskLimit);
    disk.post([open = std::move(open), text = log_.take_kept()] { append(open, text); }, [] {});
  } catch (const std::exception&) {  // no thread can be started
  }
}

}  // namespace ddp::launcher
