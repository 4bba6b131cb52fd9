#include "launcher/output/line_prefix.hpp"

#include <cctype>
#include <cstdio>

namespace ddp::launcher {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// The name of the variable that begins behind a '$' at `at`, and how far it reaches; no name: it is none.
std::pair<std::string, std::size_t> name_at(const std::string& text, std::size_t at) {
  const bool braces = at < text.size() && text[at] == '{';
  const auto begin = at + (braces ? 1 : 0);
  auto end = begin;
  while (end < text.size() && is_word(text[end])) ++end;
  if (braces && (end == text.size() || text[end] != '}')) return {};
  return {text.substr(begin, end - begin), end + (braces ? 1 : 0)};
}

}  // namespace

LinePrefix::LinePrefix(const std::string& text_template, const PrefixFacts& facts) : parts_(1) {
  for (std::size_t at = 0; at < text_template.size();) {
    if (text_template[at] != '$') {
      parts_.back() += text_template[at++];
      continue;
    }
    const auto [name, end] = name_at(text_template, at + 1);
    if (name == "role_name") {
      parts_.back() += facts.role_name;
    } else if (name == "rank") {
      parts_.back() += facts.rank;
    } else if (name == "local_rank") {
      parts_.back() += facts.local_rank;
    } else if (name == "hostname") {
      parts_.back() += facts.hostname;
    } else if (name == "time") {
      parts_.emplace_back();
    } else {
      parts_.back() += '$';
      at += text_template.compare(at, 2, "$$") == 0 ? 2 : 1;
      continue;
    }
    at = end;
  }
}

std::string LinePrefix::text(const timespec& now) const {
  if (parts_.empty()) return {};
  std::string out = parts_.front();
  if (parts_.size() == 1) return out;
  tm local{};
  ::localtime_r(&now.tv_sec, &local);
  char seconds[32], milliseconds[8];
  std::strftime(seconds, sizeof seconds, "%Y-%m-%d %H:%M:%S", &local);
  std::snprintf(milliseconds, sizeof milliseconds, ".%03d", static_cast<int>(now.tv_nsec / 1'000'000) % 1000);
  for (std::size_t i = 1; i < parts_.size(); ++i) (((out += seconds) += milliseconds) += parts_[i]);
  return out;
}

std::string LinePrefix::text() const {
  timespec now{};
  if (parts_.size() > 1) ::clock_gettime(CLOCK_REALTIME, &now);
  return text(now);
}

std::string rank_ranges(const std::vector<int>& ranks) {
  std::string out;
  for (std::size_t first = 0, last; first < ranks.size(); first = last + 1) {
    for (last = first; last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1;) ++last;
    out += (out.empty() ? "" : ",") + std::to_string(ranks[first]);
    if (last > first) out += (last == first + 1 ? "," : "-") + std::to_string(ranks[last]);
  }
  return out;
}

}  // namespace ddp::launcher
