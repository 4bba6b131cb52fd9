#include "launcher/remote/repeated_reports.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ddp::launcher {
namespace {

constexpr std::size_t kReportBytesMax = 64 * 1024;
constexpr std::size_t kReportsMax = 16;  // a job has one; a host that was cut off may have another

// As job_summary() (launcher/node/job_summary.hpp) writes them.
constexpr std::string_view kFirstLine = "error: ", kSecondLine = "where: ", kLastLine = "try:   ";
constexpr std::string_view kLinesBetween[] = {
    "cause: ", "gpus:  ", "its stderr", "  | ", "all of its stderr: ", "after it:  "};

bool is_place_of_job(std::string_view line) {
  return line == "where: between the nodes of the job" || line == "where: the job as a whole" ||
         (line.starts_with("where: host ") && line.find(", round ") != std::string_view::npos);
}

// Whether line `index` of a report can begin with these bytes, which may be less than the whole start of the line.
bool may_belong(std::string_view bytes, std::size_t index) {
  const auto agrees = [bytes](std::string_view start) { return bytes.starts_with(start.substr(0, bytes.size())); };
  if (index == 0) return agrees(kFirstLine);
  if (index == 1) return agrees(kSecondLine);
  return agrees(kLastLine) || std::any_of(std::begin(kLinesBetween), std::end(kLinesBetween), agrees);
}

bool belongs(std::string_view line, std::size_t index) {
  if (index == 0) return line.starts_with(kFirstLine);
  if (index == 1) return is_place_of_job(line);
  const auto begins_so = [line](std::string_view start) { return line.starts_with(start); };
  return begins_so(kLastLine) || std::any_of(std::begin(kLinesBetween), std::end(kLinesBetween), begins_so);
}

}  // namespace

std::string RepeatedReports::feed(std::size_t host, std::string_view bytes) {
  auto& held = held_[host];
  std::string out;
  while (!bytes.empty()) {
    const auto newline = bytes.find('\n');
    const auto size = newline == std::string_view::npos ? bytes.size() : newline + 1;
    const auto piece = bytes.substr(0, size);
    bytes.remove_prefix(size);
    const bool is_whole = newline != std::string_view::npos;
    if (held.is_in_line) {
      out += piece;
      held.is_in_line = !is_whole;
      continue;
    }
    held.line += piece;
    if (is_whole) {
      take_whole_line(held, out);
    } else if (!may_belong(held.line, held.count) || held.line.size() + held.lines.size() > kReportBytesMax) {
      release(held, out);
      held.is_in_line = !may_belong(held.line, 0) || held.line.size() > kReportBytesMax;
      if (held.is_in_line) out += std::exchange(held.line, {});
    }
  }
  return out;
}

void RepeatedReports::take_whole_line(Held& held, std::string& out) {
  const auto line = std::exchange(held.line, {});
  const auto text = std::string_view(line).substr(0, line.size() - 1);
  if (!belongs(text, held.count) || line.size() + held.lines.size() > kReportBytesMax) release(held, out);
  if (held.count == 0 && !belongs(text, 0)) {
    out += line;
    return;
  }
  held.lines += line;
  ++held.count;
  if (!text.starts_with(kLastLine)) return;
  if (std::find(shown_.begin(), shown_.end(), held.lines) != shown_.end()) {
    held.lines.clear();
  } else if (shown_.size() < kReportsMax) {
    shown_.push_back(held.lines);
  }
  release(held, out);
}

void RepeatedReports::release(Held& held, std::string& out) {
  out += std::exchange(held.lines, {});
  held.count = 0;
}

std::string RepeatedReports::end(std::size_t host) {
  const auto found = held_.find(host);
  if (found == held_.end()) return {};
  std::string out;
  release(found->second, out);
  out += found->second.line;
  held_.erase(found);
  return out;
}

}  // namespace ddp::launcher
