#include "launcher/output/equal_lines.hpp"

#include <algorithm>

namespace ddp::launcher {
namespace {

constexpr std::size_t kLineCost = 256;  // what a held line takes beside its text, roughly

}  // namespace

void EqualLines::add(int rank, int stream, std::string_view text, TimePoint now) {
  auto& numbers = by_text_[{stream, std::string(text)}];
  auto& last = last_of_rank_[rank];
  const auto after_last = std::upper_bound(numbers.begin(), numbers.end(), last);
  if (after_last != numbers.end()) {  // a later one of this text can't have this worker yet, nor one before its last
    last = *after_last;
    auto& ranks = held_[last - first_].line.ranks;
    ranks.insert(std::lower_bound(ranks.begin(), ranks.end(), rank), rank);
    return;
  }
  last = first_ + held_.size();
  numbers.push_back(last);
  held_.push_back({{stream, std::string(text), {rank}}, now + kHold});
  held_bytes_ += text.size() + kLineCost;
}

EqualLines::Line EqualLines::take_front() {
  auto line = std::move(held_.front().line);
  const auto numbers = by_text_.find({line.stream, line.text});
  numbers->second.pop_front();
  if (numbers->second.empty()) by_text_.erase(numbers);
  held_.pop_front();
  ++first_;
  held_bytes_ -= line.text.size() + kLineCost;
  return line;
}

std::vector<EqualLines::Line> EqualLines::take_due(TimePoint now) {
  std::vector<Line> out;
  while (!held_.empty() &&
         (held_.front().due <= now || held_.front().line.ranks.size() == workers_ || held_bytes_ > kHeldBytesMax))
    out.push_back(take_front());
  return out;
}

std::vector<EqualLines::Line> EqualLines::take_all() {
  std::vector<Line> out;
  while (!held_.empty()) out.push_back(take_front());
  return out;
}

std::optional<EqualLines::TimePoint> EqualLines::next_deadline() const {
  if (held_.empty()) return {};
  return held_.front().due;
}

}  // namespace ddp::launcher
