#include "worker_runtime/trace/timeline.hpp"

#include <algorithm>
#include <cstdio>
#include <set>

#include "worker_runtime/files/json_text.hpp"

namespace ddp::trace {

namespace {

using std::chrono::nanoseconds;

constexpr std::chrono::seconds kBasePeriod{7'889'238};  // a quarter of a year

// The format counts in microseconds.
std::string microseconds_text(nanoseconds time) {
  char text[32];
  const auto count = std::max<std::int64_t>(time.count(), 0);
  const int length = std::snprintf(text, sizeof text, "%lld.%03lld", static_cast<long long>(count / 1000),
                                   static_cast<long long>(count % 1000));
  return {text, static_cast<std::size_t>(length)};
}

std::string arguments_of(const CollectiveFacts& collective, TimePoint begin) {
  return ",\"cat\":\"collective\",\"args\":{\"sequence\":" + std::to_string(collective.sequence) +
         ",\"bytes\":" + std::to_string(collective.bytes) +
         ",\"waited_us\":" + microseconds_text(begin - collective.called) +
         (collective.has_failed ? ",\"failed\":true}" : "}");
}

// What a viewer shows in place of a number.
std::string label(const std::string& pid, const std::string& tid, const char* what, const std::string& argument) {
  return "{\"ph\":\"M\",\"pid\":" + pid + ",\"tid\":" + tid + ",\"name\":\"" + what + "\",\"args\":{" + argument + "}}";
}

}  // namespace

TimePoint base_of(TimePoint time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch());
  return TimePoint(seconds / kBasePeriod * kBasePeriod);
}

std::uint32_t Timeline::text(std::string_view text) {
  std::string key(text.substr(0, kTextBytesMax));
  if (const auto found = numbers_.find(key); found != numbers_.end()) return found->second;
  if (texts_.size() + 1 == kTextsMax) key = "...";
  if (texts_.size() == kTextsMax) return static_cast<std::uint32_t>(kTextsMax - 1);
  const auto number = static_cast<std::uint32_t>(texts_.size());
  texts_.push_back(key);
  numbers_.emplace(std::move(key), number);
  return number;
}

void Timeline::add(const Event& event) {
  if (events_.size() == events_max_) {
    events_.pop_front();
    ++dropped_count_;
  }
  events_.push_back(event);
}

void Timeline::write(const ProcessFacts& process, const std::function<void(std::string_view)>& append) const {
  std::vector<std::string> names;  // each is quoted once
  for (const std::string& text : texts_) names.push_back(files::json_text(text));
  const TimePoint base = events_.empty() ? TimePoint{} : base_of(events_.front().end);
  const std::string pid = std::to_string(process.rank);
  append("{\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":" + std::to_string(base.time_since_epoch().count()) +
         ",\"otherData\":{\"rank\":" + pid + ",\"process\":" + std::to_string(process.pid) +
         ",\"host\":" + files::json_text(process.host) + ",\"dropped_events\":" + std::to_string(dropped_count_) +
         "},\n\"traceEvents\":[\n");
  append(label(pid, "0", "process_name", "\"name\":" + files::json_text("rank " + pid + " (" + process.host + ")")) +
         ",\n" + label(pid, "0", "process_sort_index", "\"sort_index\":" + pid));
  std::set<std::uint32_t> tracks;
  for (const Event& event : events_) {
    if (tracks.insert(event.track).second) {
      append(",\n" + label(pid, std::to_string(event.track), "thread_name", "\"name\":" + names[event.track]));
    }
    append(",\n{\"ph\":\"X\",\"pid\":" + pid + ",\"tid\":" + std::to_string(event.track) +
           ",\"name\":" + names[event.name] + ",\"ts\":" + microseconds_text(event.begin - base) +
           ",\"dur\":" + microseconds_text(event.end - event.begin) +
           (event.collective ? arguments_of(*event.collective, event.begin) : ",\"cat\":\"program\"") + "}");
  }
  append("\n]}\n");
}

}  // namespace ddp::trace
