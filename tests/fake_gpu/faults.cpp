#include "tests/fake_gpu/faults.hpp"

#include <charconv>
#include <stdexcept>

namespace ddp::fake_gpu {

namespace {

struct Word {
  std::string_view text;
  Fault::Kind kind;
  bool takes_number;
};

constexpr Word kWords[] = {{"return", Fault::Kind::return_code, true},    {"sticky", Fault::Kind::sticky, true},
                           {"async", Fault::Kind::async, true},           {"hang", Fault::Kind::hang, false},
                           {"delay", Fault::Kind::delay, true},           {"die", Fault::Kind::die, false},
                           {"die_inside", Fault::Kind::die_inside, false}};

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

[[noreturn]] void refuse(std::string_view entry, const char* why) {
  throw std::invalid_argument("FAKE_GPU_FAULTS: \"" + std::string(entry) + "\": " + why);
}

template <class Number>
Number number_in(std::string_view text, std::string_view entry) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) refuse(entry, "a number is missing");
  return number;
}

PlannedFault parse_entry(std::string_view entry) {
  const auto parts = split(entry, ':');
  if (parts.size() < 3) refuse(entry, "it is not <call>:<nth>:<what>");
  PlannedFault planned{.call = std::string(parts[0])};
  std::string_view nth = parts[1];
  planned.and_later = !nth.empty() && nth.back() == '+';
  if (planned.and_later) nth.remove_suffix(1);
  planned.nth = number_in<unsigned long>(nth, entry);
  for (const Word& word : kWords) {
    if (word.text != parts[2]) continue;
    if (parts.size() != (word.takes_number ? 4U : 3U)) refuse(entry, "too few or too many numbers");
    planned.fault = {word.kind, word.takes_number ? number_in<int>(parts[3], entry) : 0};
    return planned;
  }
  refuse(entry, "there is no such fault");
}

}  // namespace

std::vector<PlannedFault> parse_faults(std::string_view text) {
  std::vector<PlannedFault> planned;
  for (const std::string_view entry : split(text, ';')) {
    if (!entry.empty()) planned.push_back(parse_entry(entry));
  }
  return planned;
}

Fault fault_for(const std::vector<PlannedFault>& planned, std::string_view call, unsigned long nth) {
  for (const PlannedFault& each : planned) {
    if (each.call == call && (each.nth == nth || (each.and_later && nth > each.nth))) return each.fault;
  }
  return {};
}

}  // namespace ddp::fake_gpu
