// A log for operators: one line per event, with the time in UTC, a level, the event's name and key=value fields:
//
//   2026-11-26T13:05:54.205Z info round_started job=llama node=host-a round=3 world_size=16 why="rank 3 was killed"
//
// A value with a space, a quote, a backslash or '=' stands in double quotes; quotes and backslashes inside are escaped
// with a backslash. All values are made printable (printable.hpp), so peers cannot forge lines. Times carry their unit:
// 30000ms. Secrets (tokens, node keys, nonces) are never logged.
//
// Lines below the wanted level are not written, but the log keeps the newest lines of all levels in memory, to explain
// a failure afterwards. A line costs about a microsecond, so nothing is logged per training step.
//
// Uses spdlog; only event_log.cpp includes it.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::base {

enum class LogLevel { debug, info, warning, error, off };

// Accepts "debug", "info", "warning", "error" and "off".
std::optional<LogLevel> log_level_of(std::string_view word);
inline constexpr const char* kLogLevelWords = "debug, info, warning, error or off";

// Fields in the order in which they were added. Keys are literals.
class LogFields {
 public:
  static constexpr std::size_t kValueBytesMax = 1'000;  // a longer text is cut
  static constexpr std::size_t kBytesMax = 3'000;       // a field that does not fit gets an empty value

  LogFields& add(std::string_view key, std::string_view text);
  LogFields& add(std::string_view key, const char* text) { return add(key, std::string_view(text)); }
  LogFields& add(std::string_view key, bool is_so) { return add(key, is_so ? "true" : "false"); }
  LogFields& add(std::string_view key, std::integral auto number) { return add(key, std::to_string(number)); }
  LogFields& add(std::string_view key, std::chrono::milliseconds time) {
    return add(key, std::to_string(time.count()) + "ms");
  }
  LogFields& add(std::string_view key, const std::vector<int>& numbers);  // "0,1"; "none" if empty
  // Adds nothing if `value` is empty.
  template <typename Value>
  LogFields& add(std::string_view key, const std::optional<Value>& value) {
    return value ? add(key, *value) : *this;
  }
  // Adds nothing if `text` is empty.
  LogFields& add_if_any(std::string_view key, std::string_view text) { return text.empty() ? *this : add(key, text); }

  LogFields& add(const LogFields& others) {
    text_ += others.text_;
    return *this;
  }

  const std::string& text() const { return text_; }  // " round=3 world_size=16"

 private:
  static constexpr std::size_t kBytesUsual = 200;

  void append_value(std::string_view text);

  std::string text_;
};

struct LogEvent {
  std::string_view name;  // snake_case
  LogFields fields{};
  LogLevel level = LogLevel::debug;
};

// Threads: any.
class EventLog {
 public:
  static constexpr std::size_t kKeptMax = 300;  // lines kept in memory

  // `write` gets each line without its newline, on the thread that logs. It must not throw.
  using Write = std::function<void(LogLevel level, const std::string& line)>;
  EventLog(LogLevel level, Write write);
  ~EventLog();
  EventLog(const EventLog&) = delete;

  // `where` holds fields such as the job and the node; they precede the event's own fields.
  void operator()(const LogEvent& event, const LogFields& where = {});

  // Returns the kept lines, oldest first, each with its newline, and forgets them.
  std::string take_kept();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp::base
