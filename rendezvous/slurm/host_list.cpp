#include "rendezvous/slurm/host_list.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <utility>

#include "ddp/error.hpp"

namespace ddp::slurm {

namespace {

using Texts = std::vector<std::string>;

constexpr std::string_view kSeparators = ", \t\n";
constexpr std::size_t kDigitsMax = 18;           // of one number
constexpr std::size_t kListBytesShownMax = 200;  // in a message

[[noreturn]] void refuse_list(std::string_view list, const std::string& why) {
  const bool is_long = list.size() > kListBytesShownMax;
  throw InvalidArgument("no list of hosts: '" + std::string(list.substr(0, kListBytesShownMax)) +
                        (is_long ? "...'" : "'") + ": " + why);
}

[[noreturn]] void refuse_count(std::string_view list) {
  refuse_list(list, "it names more than " + std::to_string(kHostCountMax) + " hosts");
}

class Reader {
 public:
  explicit Reader(std::string_view list) : list_(list) {}

  Texts read() {
    Texts hosts;
    while (true) {
      const auto begin = list_.find_first_not_of(kSeparators, at_);
      if (begin == std::string_view::npos) return hosts;
      at_ = begin;
      auto more = read_item();
      if (hosts.size() + more.size() > kHostCountMax) refuse_count(list_);
      std::move(more.begin(), more.end(), std::back_inserter(hosts));
    }
  }

 private:
  // Up to the next separator outside of brackets.
  Texts read_item() {
    std::vector<std::string> texts{""};  // texts[i] stands before brackets[i]
    std::vector<Texts> brackets;
    std::size_t count = 1;  // of names; looked at before the next bracket is read, because each may have as many
    for (; at_ < list_.size() && kSeparators.find(list_[at_]) == std::string_view::npos; ++at_) {
      if (list_[at_] == ']') refuse_list(list_, "a ] without its [");
      if (list_[at_] == '[') {
        brackets.push_back(read_brackets());
        count *= brackets.back().size();
        if (count > kHostCountMax) refuse_count(list_);
        texts.emplace_back();
      } else {
        texts.back() += list_[at_];
      }
    }
    return names_of(texts, brackets, count);
  }

  // Leaves at_ at the closing one.
  Texts read_brackets() {
    const auto end = list_.find(']', at_);
    if (end == std::string_view::npos) refuse_list(list_, "a [ without its ]");
    auto ranges = list_.substr(at_ + 1, end - at_ - 1);
    at_ = end;
    Texts out;
    while (true) {
      const auto comma = ranges.find(',');
      add_range(ranges.substr(0, comma), out);
      if (comma == std::string_view::npos) return out;
      ranges.remove_prefix(comma + 1);
    }
  }

  // "7", "08-11": these numbers, as wide as the first of them is.
  void add_range(std::string_view range, Texts& out) const {
    const auto dash = range.find('-');
    const auto first_text = range.substr(0, dash);
    const auto first = number(first_text, range);
    const auto last = dash == std::string_view::npos ? first : number(range.substr(dash + 1), range);
    if (last < first) refuse_list(list_, "the range '" + std::string(range) + "' ends before it begins");
    if (last - first >= kHostCountMax || out.size() + (last - first) >= kHostCountMax) refuse_count(list_);
    for (auto value = first; value <= last; ++value) {
      const auto digits = std::to_string(value);
      out.push_back(std::string(first_text.size() - std::min(first_text.size(), digits.size()), '0') + digits);
    }
  }

  std::uint64_t number(std::string_view text, std::string_view range) const {
    std::uint64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto result = std::from_chars(text.data(), end, value);
    if (text.empty() || text.size() > kDigitsMax || result.ec != std::errc{} || result.ptr != end) {
      refuse_list(list_, "'" + std::string(range) + "' in its brackets is no number and no range of numbers");
    }
    return value;
  }

  // All `count` combinations, in Slurm's order.
  Texts names_of(const Texts& texts, const std::vector<Texts>& brackets, std::size_t count) const {
    std::size_t bytes = brackets.size() * kDigitsMax;
    for (const auto& text : texts) bytes += text.size();
    if (bytes > kHostNameBytesMax) refuse_list(list_, "a name in it is too long");

    // Which combination is the i-th: the last bracket's digit is the lowest one, then come the first, the second, ...
    Texts names;
    names.reserve(count);
    std::vector<std::size_t> choice(brackets.size());
    for (std::size_t i = 0; i < count; ++i) {
      std::size_t rest = i;
      for (std::size_t k = 0; k < brackets.size(); ++k) {
        const std::size_t bracket = (k + brackets.size() - 1) % brackets.size();
        choice[bracket] = rest % brackets[bracket].size();
        rest /= brackets[bracket].size();
      }
      std::string name = texts[0];
      for (std::size_t k = 0; k < brackets.size(); ++k) name += brackets[k][choice[k]] + texts[k + 1];
      names.push_back(std::move(name));
    }
    return names;
  }

  std::string_view list_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<std::string> expand_host_list(std::string_view list) {
  if (list.size() > kHostListBytesMax)
    refuse_list(list, "it has more than " + std::to_string(kHostListBytesMax) + " bytes");
  return Reader(list).read();
}

}  // namespace ddp::slurm
