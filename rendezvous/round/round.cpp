#include "ddp/round.hpp"

#include <array>
#include <charconv>
#include <cstdio>
#include <string_view>

namespace ddp {

namespace {

constexpr std::size_t kRandomDigits = 16;  // to_string() pads with zeros, so every id has exactly one spelling

// The whole of `text` as a number without sign, blanks or needless zeros.
template <class Number>
std::optional<Number> parse_decimal(std::string_view text) {
  if (text.size() > 1 && text.front() == '0') return std::nullopt;
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> parse_random(std::string_view text) {
  if (text.size() != kRandomDigits) return std::nullopt;
  if (text.find_first_not_of("0123456789abcdef") != std::string_view::npos) return std::nullopt;
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

}  // namespace

std::string DDP_ABI::to_string(const RoundId& id) {
  std::array<char, kRandomDigits + 1> random{};
  std::snprintf(random.data(), random.size(), "%016llx", static_cast<unsigned long long>(id.term_random));
  return std::to_string(id.term) + "-" + random.data() + "-" + std::to_string(id.number);
}

std::optional<RoundId> DDP_ABI::parse_round_id(const std::string& text) {
  const std::string_view all = text;
  const auto first = all.find('-');
  const auto last = all.rfind('-');
  if (first == std::string_view::npos || first == last) return std::nullopt;
  const auto term = parse_decimal<std::uint64_t>(all.substr(0, first));
  const auto random = parse_random(all.substr(first + 1, last - first - 1));
  const auto number = parse_decimal<std::uint32_t>(all.substr(last + 1));
  if (!term || !random || !number) return std::nullopt;
  return RoundId{*term, *random, *number};
}

}  // namespace ddp
