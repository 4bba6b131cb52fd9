#include "base/event_log.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/printable.hpp"

namespace ddp::base {
namespace {

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::debug: return spdlog::level::debug;
    case LogLevel::info: return spdlog::level::info;
    case LogLevel::warning: return spdlog::level::warn;
    case LogLevel::error: return spdlog::level::err;
    case LogLevel::off: break;
  }
  return spdlog::level::off;
}

// Letters, digits and what else stands in names and addresses: such a text is printable and bare.
bool is_plain_word(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '-' && c <= ':') || c == '_';
  });
}

bool is_bare(std::string_view text) { return !text.empty() && text.find_first_of(" \"\\=") == std::string_view::npos; }

// Collects formatted lines until fetch().
class Gathering final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  std::string fetch() { return std::exchange(text_, {}); }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    text_.append(line.data(), line.size());
  }
  void flush_() override {}

  std::string text_;
};

}  // namespace

std::optional<LogLevel> log_level_of(std::string_view word) {
  constexpr std::pair<std::string_view, LogLevel> kWords[] = {{"debug", LogLevel::debug},
                                                              {"info", LogLevel::info},
                                                              {"warning", LogLevel::warning},
                                                              {"error", LogLevel::error},
                                                              {"off", LogLevel::off}};
  for (const auto& [name, level] : kWords)
    if (name == word) return level;
  return {};
}

LogFields& LogFields::add(std::string_view key, std::string_view text) {
  const auto length_before = text_.size();
  if (text_.empty()) text_.reserve(kBytesUsual);
  text_.append(" ").append(key).append("=");
  append_value(text);
  if (text_.size() > kBytesMax) {
    text_.resize(length_before);
    text_.append(" ").append(key).append("=\"\"");
  }
  return *this;
}

void LogFields::append_value(std::string_view text) {
  if (text.size() <= kValueBytesMax && is_plain_word(text)) {  // as most are
    text_.append(text);
    return;
  }
  const auto shown = printable(text, kValueBytesMax);
  if (is_bare(shown)) {
    text_.append(shown);
    return;
  }
  text_.push_back('"');
  for (const char c : shown) {
    if (c == '"' || c == '\\') text_.push_back('\\');
    text_.push_back(c);
  }
  text_.push_back('"');
}

LogFields& LogFields::add(std::string_view key, const std::vector<int>& numbers) {
  std::string list;
  for (const int number : numbers) list += (list.empty() ? "" : ",") + std::to_string(number);
  return add(key, list.empty() ? "none" : list);
}

class EventLog::Impl {
 public:
  Impl(LogLevel level, Write write)
      : write_(std::move(write)), gathering_(std::make_shared<Gathering>()), logger_("", gathering_) {
    logger_.set_level(level_of(level));
    logger_.set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %v", spdlog::pattern_time_type::utc);
    logger_.enable_backtrace(kKeptMax);
  }

  void log(const LogEvent& event, const LogFields& where) {
    std::string text(event.name);
    text.append(where.text()).append(event.fields.text());
    std::string line;
    {
      const std::lock_guard lock(mutex_);
      logger_.log(level_of(event.level), std::string_view(text));
      line = gathering_->fetch();
    }
    if (line.empty()) return;  // below the wanted level
    line.pop_back();           // the newline
    write_(event.level, line);
  }

  std::string take_kept() {
    const std::lock_guard lock(mutex_);
    logger_.dump_backtrace();
    const auto text = gathering_->fetch();
    // spdlog adds a banner line before and after the kept lines.
    const auto begin = text.find('\n') + 1;
    const auto end = text.rfind('\n', text.size() - 2) + 1;
    return text.substr(begin, std::max(begin, end) - begin);
  }

 private:
  const Write write_;
  std::mutex mutex_;  // of what follows
  std::shared_ptr<Gathering> gathering_;
  spdlog::logger logger_;
};

EventLog::EventLog(LogLevel level, Write write) : impl_(std::make_unique<Impl>(level, std::move(write))) {}
EventLog::~EventLog() = default;
void EventLog::operator()(const LogEvent& event, const LogFields& where) { impl_->log(event, where); }
std::string EventLog::take_kept() { return impl_->take_kept(); }

}  // namespace ddp::base
