#include "launcher/agent/agent_log.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <future>
#include <memory>
#include <string_view>
#include <utility>

#include "base/file_thread.hpp"
#include "base/host_name.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::seconds kDiskLimit{2};
constexpr std::chrono::milliseconds kNoLimit{0};  // the disk has had its time

// Returns why not all of it was written; empty if it was.
std::string append(const std::function<base::UniqueFd()>& open, std::string_view text) {
  try {
    const auto file = open();
    while (!text.empty()) {
      const auto written = ::write(file.get(), text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return std::strerror(written == 0 ? ENOSPC : errno);
      text.remove_prefix(static_cast<std::size_t>(written));
    }
    return {};
  } catch (const std::exception& error) {
    return error.what();
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
  auto line = event;
  line.level = std::min(line.level, base::LogLevel::info);  // the node's own events say what went wrong
  log_(line, base::LogFields(host_).add(where));
}

std::string AgentLog::write_kept(std::function<base::UniqueFd()> open) noexcept {
  if (!open) return {};
  try {
    std::promise<std::string> promise;
    auto failure = promise.get_future();
    base::FileThread disk(io_, kNoLimit);
    disk.post([open = std::move(open), text = log_.take_kept(),
               told = std::make_shared<std::promise<std::string>>(
                   std::move(promise))] { told->set_value(append(open, text)); },
              [] {});
    if (failure.wait_for(kDiskLimit) == std::future_status::timeout) return "the disk does not answer";
    return failure.get();
  } catch (const std::exception& error) {  // no thread can be started
    return error.what();
  }
}

}  // namespace ddp::launcher
